//! The bell in the top bar: a link to the alerts with the number of those that fire now.
//!
//! The number is part of the state of the cluster, which the layout keeps current, so the bell needs no request of its
//! own.

use leptos::prelude::*;
use milvaion_api::{alerts::FiringAlerts, views::ClusterStatus};

use super::{cluster_state::use_cluster_status, icon::Icon};

/// The greatest number that the bell shows in full.
const MAX_SHOWN: i64 = 99;

/// The link with the number of firing alerts.
#[component]
pub fn AlertBell() -> impl IntoView {
    let status = use_cluster_status();
    let firing = Memo::new(move |_| status.with(|status| status.as_ref().and_then(known_alerts)));
    let name = Memo::new(move |_| name(firing.get()));
    let shown = move || firing.get().map(FiringAlerts::total).filter(|total| *total > 0);
    view! {
        <a
            class="icon-btn bell"
            href="/alerts"
            id="alert-bell"
            aria-label=move || name.get()
            title=move || name.get()
            data-status=move || firing.get().and_then(color_status)
        >
            <Icon name="bell"/>
            <span class="bell-count" aria-hidden="true" hidden=move || shown().is_none()>
                {move || shown().map(number)}
            </span>
        </a>
    }
}

/// Returns the firing alerts; `None` if PostgreSQL has not answered yet.
fn known_alerts(status: &ClusterStatus) -> Option<FiringAlerts> {
    (status.is_pause_known || status.alerts.total() > 0).then_some(status.alerts)
}

fn name(firing: Option<FiringAlerts>) -> String {
    match firing.map(FiringAlerts::total) {
        None => "Alerts".into(),
        Some(0) => "Alerts: none firing".into(),
        Some(total) => format!("Alerts: {total} firing"),
    }
}

fn number(total: i64) -> String {
    if total > MAX_SHOWN { format!("{MAX_SHOWN}+") } else { total.to_string() }
}

/// Returns the status whose color family the highest severity has; none without a firing alert.
const fn color_status(firing: FiringAlerts) -> Option<&'static str> {
    match (firing.critical, firing.warning) {
        (1.., _) => Some("failed"),
        (_, 1..) => Some("retrying"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bell_has_the_number_and_the_highest_severity() {
        let firing = |critical, warning| FiringAlerts { critical, warning };
        assert_eq!(name(Some(firing(1, 1))), "Alerts: 2 firing");
        assert_eq!(name(Some(firing(0, 0))), "Alerts: none firing");
        assert_eq!(name(None), "Alerts");
        assert_eq!((number(99), number(100)), ("99".into(), "99+".into()));
        assert_eq!(color_status(firing(1, 5)), Some("failed"));
        assert_eq!(color_status(firing(0, 5)), Some("retrying"));
        assert_eq!(color_status(firing(0, 0)), None);
    }
}
