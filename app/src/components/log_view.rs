//! A log that can be read while it is written.
//!
//! The lines are real text in the page, in blocks the browser need not lay out while they are out of sight: searching,
//! selecting and copying are the browser's own and find every line that is loaded. Following the end stops as soon as
//! the reader scrolls away from it.

use leptos::{ev, html, prelude::*};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLevel, LogLine},
};

use super::{
    icon::Icon,
    log_lines::{LOG_BLOCK_LINES, LogLines},
    time::use_page_clock,
};
use crate::{api::occurrences::log_before, format};

/// How many lines one earlier page holds at most; a shorter one was the first.
const EARLIER_PAGE_LINES: usize = 500;
/// How near its end the reader must come for following to begin again, in CSS pixels.
const FOLLOW_DISTANCE_PX: i32 = 24;

const LOG_LEVELS: [LogLevel; 4] = [LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error];

/// The log of one occurrence.
#[component]
pub fn LogView(
    /// Whose.
    id: OccurrenceId,
    /// Its lines.
    lines: LogLines,
    /// Whether more may come.
    #[prop(into)]
    open: Signal<bool>,
    /// True when the page shows lines further back, which nothing is added to.
    #[prop(optional)]
    is_earlier_page: bool,
) -> impl IntoView {
    let scroller = NodeRef::<html::Div>::new();
    let follow = RwSignal::new(true);
    let hidden_levels = RwSignal::new([false; LOG_LEVELS.len()]);

    let to_end = move || {
        if let Some(element) = scroller.get_untracked() {
            element.set_scroll_top(element.scroll_height());
        }
    };
    // Runs after each batch of lines is in the page; the first run brings a log that is being written to its end.
    Effect::new(move |_| {
        let _ = lines.count();
        if follow.get_untracked() && open.get_untracked() && !is_earlier_page {
            // The reader may scroll away before the frame comes.
            request_animation_frame(move || {
                if follow.try_get_untracked() == Some(true) {
                    to_end();
                }
            });
        }
    });
    // Any move upwards is the reader's, for following only ever moves down: it stops at once, however short the move, or
    // lines that come quickly would pull a slow wheel back to the end.
    let last_top = StoredValue::new(0);
    let scrolled = move |_: ev::Event| {
        let Some(element) = scroller.get_untracked() else { return };
        let top = element.scroll_top();
        let rest = element.scroll_height() - top - element.client_height();
        let went_up = top < last_top.get_value();
        last_top.set_value(top);
        if went_up && rest > 1 {
            follow.set(false);
        } else if !went_up && rest <= FOLLOW_DISTANCE_PX {
            follow.set(true);
        }
    };
    let jump = move |_| {
        follow.set(true);
        to_end();
    };
    let jump_button = move || {
        (open.get() && !follow.get() && !is_earlier_page).then(|| {
            view! {
                <button type="button" class="btn btn-small right needs-js" on:click=jump>
                    <Icon name="arrow-right"/>
                    "Jump to live"
                </button>
            }
        })
    };
    let count = move || {
        let count = format::plural(i64::try_from(lines.count()).unwrap_or(i64::MAX), "line");
        if lines.has_earlier() || is_earlier_page { format!("{count} of more") } else { count }
    };
    let blocks = move || lines.blocks().get();
    view! {
        <div class="log">
            <div class="log-tools">
                <span class="muted">{count}</span>
                <LevelChips hidden_levels/>
                {is_earlier_page
                    .then(|| view! { <a class="btn btn-small right" href=format!("/occurrences/{id}")>"Newest lines"</a> })}
                {jump_button}
            </div>
            <EarlierButton id lines/>
            <div class="log-scroll" tabindex="0" role="region" aria-label="Log lines" node_ref=scroller on:scroll=scrolled>
                <div class="log-lines">
                    <For each=blocks key=|block| block.key let:block>
                        <BlockView lines=block.lines.into() hidden_levels/>
                    </For>
                </div>
            </div>
            <p class="log-note" hidden=move || lines.count() != 0>
                {move || if open.get() { "No line yet. Lines appear here as they are written." } else { "It wrote no line." }}
            </p>
        </div>
    }
}

/// One chip for each level; a pressed one is shown.
#[component]
fn LevelChips(hidden_levels: RwSignal<[bool; LOG_LEVELS.len()]>) -> impl IntoView {
    let chips = LOG_LEVELS
        .into_iter()
        .enumerate()
        .map(|(index, level)| {
            let shown = move || !hidden_levels.read()[index];
            view! {
                <button
                    type="button"
                    class="chip"
                    aria-pressed=move || if shown() { "true" } else { "false" }
                    aria-current=move || shown().then_some("true")
                    on:click=move |_| hidden_levels.update(|hidden| hidden[index] = !hidden[index])
                >
                    {level.as_str()}
                </button>
            }
        })
        .collect::<Vec<_>>();
    view! { <div class="chips needs-js" role="group" aria-label="Levels shown">{chips}</div> }
}

/// Brings the lines before the first one: in place with a script, as a page of its own without.
#[component]
fn EarlierButton(id: OccurrenceId, lines: LogLines) -> impl IntoView {
    let loading = RwSignal::new(false);
    let failed = RwSignal::new(None::<String>);
    let load = move |event: ev::MouseEvent| {
        event.prevent_default();
        let Some(first) = untrack(|| lines.first_seq()) else { return };
        if loading.get_untracked() {
            return;
        }
        loading.set(true);
        leptos::task::spawn_local(async move {
            let answer = log_before(id, first).await;
            if loading.try_set(false).is_some() {
                // The page is gone.
                return;
            }
            match answer {
                Ok(earlier) => {
                    failed.set(None);
                    let has_earlier = earlier.len() >= EARLIER_PAGE_LINES;
                    lines.prepend(earlier, has_earlier);
                }
                Err(error) => failed.set(Some(error.to_string())),
            }
        });
    };
    let link = move || {
        let first = lines.first_seq()?;
        lines.has_earlier().then(|| {
            view! {
                <p class="log-note">
                    <a href=format!("/occurrences/{id}?log_before={first}") on:click=load aria-disabled=move || {
                        loading.get().then_some("true")
                    }>"Load earlier lines"</a>
                </p>
            }
        })
    };
    view! {
        {link}
        <p class="log-note" role="alert" hidden=move || failed.with(Option::is_none)>{move || failed.get()}</p>
    }
}

#[component]
fn BlockView(lines: RwSignal<Vec<LogLine>>, hidden_levels: RwSignal<[bool; LOG_LEVELS.len()]>) -> impl IntoView {
    let shown = move || {
        let hidden = hidden_levels.read();
        let lines = lines.read();
        lines.iter().filter(|line| !hidden[line.level as usize]).cloned().collect::<Vec<_>>()
    };
    // The browser may skip a block that is out of sight because it knows a full one's height; one that still grows is
    // not yet that high.
    let is_full = move || lines.read().len() >= LOG_BLOCK_LINES && !hidden_levels.read().contains(&true);
    let class = move || if is_full() { "log-block" } else { "log-tail" };
    view! {
        <ol class=class>
            <For each=shown key=|line| line.seq let:line>
                <LineView line/>
            </For>
        </ol>
    }
}

#[component]
fn LineView(line: LogLine) -> impl IntoView {
    let clock = use_page_clock();
    let at = line.at;
    let anchor = format!("line-{}", line.seq);
    let number = number(line.seq);
    let data = line.data.map(|data| view! { <span class="muted">{format!(" {data}")}</span> });
    view! {
        <li class="log-line" data-level=line.level.as_str() id=anchor>
            <span class="log-no">{number}</span>
            <time class="log-at" datetime=format::iso(at)>{move || clock.millis_text(at)}</time>
            <span class="log-level">{line.level.as_str()}</span>
            <span class="log-text">{line.message}{data}</span>
        </li>
    }
}

/// A line's number for people: counted from 1 within its attempt, which is named from the second one on.
fn number(seq: i64) -> String {
    let (attempt, line) = (seq / 1_000_000, seq % 1_000_000 + 1);
    if attempt > 1 { format!("{attempt}:{line}") } else { line.to_string() }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::message::first_log_seq;

    use super::*;

    #[test]
    fn a_line_is_numbered_within_its_attempt() {
        assert_eq!(number(first_log_seq(1)), "1");
        assert_eq!(number(first_log_seq(2) + 6), "2:7");
    }

    #[test]
    fn levels_stand_at_their_own_place() {
        for (index, level) in LOG_LEVELS.into_iter().enumerate() {
            assert_eq!(level as usize, index);
        }
    }
}
