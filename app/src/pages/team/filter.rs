//! The filter of the team page, as a form and as part of the address.

use leptos::{ev, html, prelude::*};
use leptos_router::{NavigateOptions, hooks::use_navigate, params::ParamsMap};
use milvaion_api::{
    permissions::Role,
    team::{TeamFilter, UserState},
};

use crate::components::{
    filter_controls::{DrawnFilter, FilterValues, control_value},
    icon::Icon,
    query_reader::{InvalidFilter, QueryReader, filter_address, parameter},
};

/// Reads the filter from the parameters of the address.
pub fn read_filter(query: &ParamsMap) -> Result<TeamFilter, InvalidFilter> {
    let mut reader = QueryReader::of_form(query);
    let q = reader.text("q").unwrap_or_default();
    let role = reader.read("role", "Use viewer, operator or admin.", Role::from_slug);
    let state = reader.read("state", "Use active, locked, deactivated or invited.", UserState::from_slug);
    reader.finish("/team", TeamFilter { q, role, state })
}

/// Returns true if the filter can hide a row.
pub(super) fn is_filtered(filter: &TeamFilter) -> bool {
    *filter != TeamFilter::default()
}

/// Returns the address of the list with this filter.
pub(super) fn address(filter: &TeamFilter) -> String {
    filter_address("/team", &values(filter))
}

/// Returns the address of the CSV file with this filter.
pub(super) fn export_address(filter: &TeamFilter) -> String {
    filter_address("/export/team.csv", &values(filter))
}

/// Returns the values of the form's controls by the names of their parameters.
fn values(filter: &TeamFilter) -> FilterValues {
    vec![
        ("q", filter.q.clone()),
        ("role", parameter(filter.role.map(Role::slug))),
        ("state", parameter(filter.state.map(UserState::slug))),
    ]
}

/// The filter as a form. A script opens the new address without a full load.
#[component]
pub fn TeamFilterForm(
    /// The present filter.
    filter: TeamFilter,
    /// The values that the form was last drawn with.
    drawn: DrawnFilter,
) -> impl IntoView {
    let form = NodeRef::<html::Form>::new();
    drawn.show(form, values(&filter));
    let navigate = use_navigate();
    let search = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let filter = TeamFilter {
            q: control_value(form, "q").trim().to_owned(),
            role: Role::from_slug(&control_value(form, "role")),
            state: UserState::from_slug(&control_value(form, "state")),
        };
        navigate(&address(&filter), NavigateOptions::default());
    };
    let roles: Vec<_> = Role::ALL
        .into_iter()
        .map(|role| {
            view! { <option value=role.slug() selected=filter.role == Some(role)>{role.label()}</option> }
        })
        .collect();
    let states: Vec<_> = UserState::ALL
        .into_iter()
        .map(|state| {
            view! { <option value=state.slug() selected=filter.state == Some(state)>{state.label()}</option> }
        })
        .collect();
    let reset = is_filtered(&filter).then(|| {
        view! {
            <a class="btn btn-quiet" href="/team">
                <Icon name="x"/>
                "Remove the filter"
            </a>
        }
    });
    view! {
        <form
            method="get"
            action="/team"
            class="filterbar"
            role="search"
            aria-label="Team"
            on:submit=search
            node_ref=form
        >
            <div class="field grow">
                <label for="q">"Search"</label>
                <input
                    type="search"
                    id="q"
                    name="q"
                    value=filter.q
                    placeholder="Name or e-mail address"
                    autocomplete="off"
                    maxlength="100"
                />
            </div>
            <div class="field">
                <label for="filter-role">"Role"</label>
                <select id="filter-role" name="role">
                    <option value="">"All roles"</option>
                    {roles}
                </select>
            </div>
            <div class="field">
                <label for="filter-state">"State"</label>
                <select id="filter-state" name="state">
                    <option value="">"All states"</option>
                    {states}
                </select>
            </div>
            <div class="cluster">
                <button type="submit" class="btn">
                    <Icon name="filter"/>
                    "Filter"
                </button>
                {reset}
            </div>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(q: &str, role: &str, state: &str) -> Result<TeamFilter, InvalidFilter> {
        read_filter(&[("q", q), ("role", role), ("state", state)].into_iter().collect())
    }

    #[test]
    fn filter_survives_its_address() {
        let filter = read(" a&b ", "admin", "locked").expect("a valid filter");
        assert_eq!(filter, TeamFilter { q: "a&b".into(), role: Some(Role::Admin), state: Some(UserState::Locked) });
        assert_eq!(address(&filter), "/team?q=a%26b&role=admin&state=locked");
        assert_eq!(export_address(&filter), "/export/team.csv?q=a%26b&role=admin&state=locked");
        assert_eq!(read("", "", ""), Ok(TeamFilter::default()));
        assert_eq!(address(&TeamFilter::default()), "/team");
    }

    #[test]
    fn unreadable_filter_never_widens_the_list() {
        let invalid = read("a", "Admin", "gone").expect_err("two invalid values");
        assert_eq!(invalid.errors.iter().map(|error| error.parameter).collect::<Vec<_>>(), ["role", "state"]);
        assert_eq!(invalid.reset, "/team?q=a");
    }
}
