//! The team page: the users of the installation and the open invitations in one table, and a form for a new invitation.
//!
//! The filter is part of the address. The state of the invitations (a new link, which the server returns only once, the
//! typed name, errors) lives outside the view that a new filter draws again.

pub mod filter;
pub mod invite_form;
pub mod new_link;
pub mod state_badge;
pub mod table;

use std::time::Duration;

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    permissions::{Permission, Role},
    team::{TeamFilter, TeamRow, TeamView},
};
use milvaion_protocol::id::UserId;

pub(super) use self::invite_form::role_description;
use self::{
    filter::{TeamFilterForm, export_address, is_filtered, read_filter},
    invite_form::InviteForm,
    new_link::{CreatedLink, NewLink},
    table::{TEAM_TABLE_ID, TeamTable},
};
use crate::{
    api::{
        session::{FlashView, take_flash},
        team::{INVITE_REVOKED_NOTICE, InviteUser, renew_invite, revoke_invite, team},
    },
    browser,
    components::{
        action::{UserAction, use_action},
        action_error::{ActionError, LastError},
        confirm::{RowQuestion, RowQuestionDialog},
        empty_state::EmptyState,
        filter_controls::DrawnFilter,
        filter_error::{render_filtered, use_filter},
        focus::hand_focus,
        form::ErrorSummary,
        icon::Icon,
        live_rows::LiveRows,
        page_header::PageHeader,
        session_context::may,
    },
    live::{live_page, set_if_changed},
};

/// The shortest time between two reads of the team.
const REFRESH_PAUSE: Duration = Duration::from_millis(200);
/// The interval at which an open page reads the team again, because no event reports its changes.
const IDLE_REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// The id of the box with the new link of an invitation.
const RENEWED_LINK_ID: &str = "renewed-link";

/// `/team?q=&role=&state=`. A value that cannot be read yields an error and no rows.
#[component]
pub fn TeamPage() -> impl IntoView {
    let invitations = Invitations::new();
    let drawn = DrawnFilter::new();
    let read = |filter: TeamFilter| async move {
        let view = team(filter.clone()).await?;
        Ok((filter, view, take_flash("team".into()).await?.unwrap_or_default()))
    };
    render_filtered(use_filter(read_filter), read, move |found| match found {
        Ok((filter, view, flash)) => view! { <TeamContent filter view flash invitations drawn/> }.into_any(),
        Err(notice) => view! {
            <Title text="Team"/>
            <PageHeader title="Team"/>
            {notice}
        }
        .into_any(),
    })
}

/// The actions on invitations, with their links and errors.
#[derive(Clone, Copy)]
pub struct Invitations {
    inviting: ServerAction<InviteUser>,
    /// The link of the invitation that the form has created.
    invited: RwSignal<Option<CreatedLink>>,
    /// The new link of an invitation in the table.
    renewed: RwSignal<Option<CreatedLink>>,
    renew_error: LastError,
    revoke_error: LastError,
    /// The renewal of a link or the revocation.
    action: UserAction,
    /// The question before a revocation.
    question: RowQuestion,
    /// The number of changes; each one reads the table again.
    changes: RwSignal<u32>,
    /// The values typed into the form, which a new filter draws again.
    name: RwSignal<String>,
    role: RwSignal<Role>,
}

impl Invitations {
    fn new() -> Self {
        let renew_error = LastError::of("New link");
        let this = Self {
            inviting: ServerAction::new(),
            invited: RwSignal::new(None),
            renewed: RwSignal::new(None),
            renew_error,
            revoke_error: LastError::of("Revoke"),
            action: use_action(renew_error),
            question: RowQuestion::default(),
            changes: RwSignal::new(0),
            name: RwSignal::new(String::new()),
            role: RwSignal::new(Role::Viewer),
        };
        Effect::new(move |_| {
            if let Some(Ok(path)) = this.inviting.value().get() {
                this.renewed.set(None);
                this.invited.set(Some(CreatedLink { text: "The invitation is created.".into(), path }));
                this.name.set(String::new());
                this.count_change();
            }
        });
        this
    }

    fn count_change(self) {
        let _ = self.changes.try_update(|changes| *changes += 1);
    }

    /// Replaces the link of an invitation and shows the new one above the table.
    fn renew(self, id: UserId, name: String) {
        self.action.run(async move {
            let path = renew_invite(id).await?;
            let text = format!("The invitation of {name} has a new link. The old link no longer works.");
            let _ = self.invited.try_set(None);
            let _ = self.renewed.try_set(Some(CreatedLink { text, path }));
            self.count_change();
            browser::focus_on_next_frame(RENEWED_LINK_ID);
            Ok(None)
        });
    }

    /// Revokes an invitation.
    fn revoke(self, id: UserId) {
        self.action.at(self.revoke_error).run(async move {
            revoke_invite(id).await?;
            // The row disappears.
            hand_focus(TEAM_TABLE_ID, browser::PAGE_TITLE_ID);
            self.count_change();
            Ok(Some(INVITE_REVOKED_NOTICE.to_owned()))
        });
    }
}

/// The rows of the table, with the number of all users and invitations.
#[derive(Clone, Copy)]
pub struct TeamRows {
    rows: LiveRows<TeamRow>,
    total: RwSignal<u32>,
}

impl TeamRows {
    fn new(view: TeamView) -> Self {
        Self { rows: LiveRows::of_all(view.rows, |row| row.id.to_string()), total: RwSignal::new(view.total) }
    }

    fn apply(self, view: TeamView) {
        self.rows.apply_all(view.rows);
        set_if_changed(self.total, view.total);
    }

    /// Returns the number of rows, and of all users and invitations if a filter hides some.
    fn count_text(self) -> String {
        let (shown, total) = (self.rows.count(), self.total.get());
        let words = if total == 1 { "user or invitation" } else { "users and invitations" };
        if usize::try_from(total).is_ok_and(|total| total == shown) {
            format!("{total} {words}")
        } else {
            format!("{shown} of {total} {words}")
        }
    }
}

#[component]
fn TeamContent(
    filter: TeamFilter,
    view: TeamView,
    flash: FlashView,
    invitations: Invitations,
    drawn: DrawnFilter,
) -> impl IntoView {
    let rows = TeamRows::new(view);
    let request = filter.clone();
    live_page(REFRESH_PAUSE, move || team(request.clone()), |_| false, move |view| rows.apply(view))
        .every(IDLE_REFRESH_INTERVAL)
        .after_changes(invitations.changes);
    let whole: Vec<_> = flash.error.iter().map(|text| (String::new(), text.clone())).collect();
    let flash = FlashView { error: None, ..flash };
    let is_empty = Memo::new(move |_| rows.rows.is_empty());
    let export = may(Permission::Export).then(|| {
        view! {
            // The router must not follow the link to a file.
            <a class="btn" href=export_address(&filter) download rel="external">
                <Icon name="download"/>
                "Download CSV"
            </a>
        }
    });
    let is_filtered = is_filtered(&filter);
    view! {
        <Title text="Team"/>
        <PageHeader title="Team" sub="Users who can sign in, their roles, and open invitations.">{export}</PageHeader>
        <div class="stack">
            <ErrorSummary errors=whole/>
            <TeamFilterForm filter drawn/>
            <ActionError error=invitations.renew_error/>
            <ActionError error=invitations.revoke_error/>
            <NewLink link=invitations.renewed id=RENEWED_LINK_ID/>
            <p class="muted" role="status" id="team-count">{move || rows.count_text()}</p>
            <div hidden=move || !is_empty.get()>
                <EmptyState
                    icon="users"
                    title="No user or invitation matches"
                    text="The search covers names and e-mail addresses. An invitation has no e-mail address."
                >
                    <a class="btn" href="/team">"Show the whole team"</a>
                </EmptyState>
            </div>
            <div hidden=move || is_empty.get()>
                <TeamTable rows invitations/>
            </div>
            <p class="muted" hidden=move || is_filtered || rows.total.get() != 1>
                "You are the only user. Invite the next one with the form below."
            </p>
            <InviteForm flash invitations/>
        </div>
        <RowQuestionDialog question=invitations.question id="revoke-title"/>
    }
}
