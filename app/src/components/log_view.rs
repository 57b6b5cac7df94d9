//! A log viewer that follows a running occurrence.
//!
//! The lines are real text in the page, in blocks whose layout the browser skips while they are out of sight. Search,
//! selection and copying are the browser's own and cover every loaded line. Following stops as soon as the user scrolls
//! up. Lines that were missed during a pause are a gap, which is stated at its position until the user loads it.

use leptos::{ev, html, prelude::*};
use milvaion_api::{
    log_fields::log_fields_text,
    styled_text::{StyledText, TextColor, TextStyle, styled_text},
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLevel, LogLine},
};

use super::{
    action::{ErrorPlace, UserAction},
    action_error::error_text,
    focus::hand_focus,
    icon::Icon,
    log_lines::{LOG_BLOCK_LINES, LogBlock, LogGap, LogLines},
    time::use_page_clock,
};
use crate::{
    api::occurrences::{log_before, log_range},
    browser, format,
};

/// The maximum number of lines that are loaded at once. A shorter page of earlier lines is the start of the log, and a
/// shorter page of a gap is its end.
pub const LOG_PAGE_LINES: usize = 500;
/// The distance from the end within which following resumes, in CSS pixels.
const FOLLOW_DISTANCE_PX: i32 = 24;

/// The id of the scrollable region with the lines.
const LOG_SCROLL_ID: &str = "log-scroll";
/// The id of the line with the link to earlier lines.
const EARLIER_ID: &str = "earlier-lines";

const LOG_LEVELS: [LogLevel; 4] = [LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error];

/// The log of one occurrence.
#[component]
pub fn LogView(
    /// The occurrence whose log is shown.
    id: OccurrenceId,
    /// The loaded lines.
    lines: LogLines,
    /// True while more lines may arrive.
    #[prop(into)]
    open: Signal<bool>,
    /// True if the page shows an earlier part of the log, to which no lines are added.
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
    // The last lines of a run are read after its end is shown.
    let was_open = open.get_untracked();
    // Runs after each batch of lines is rendered. The first run scrolls a log that is still written to its end.
    Effect::new(move |_| {
        let _ = lines.count();
        if follow.get_untracked() && was_open && !is_earlier_page {
            // The user may scroll up before the frame.
            browser::run_on_next_frame(move || {
                if follow.try_get_untracked() == Some(true) {
                    to_end();
                }
            });
        }
    });
    // Following only scrolls down, so any upward movement is the user's. Following stops at once, however short the
    // movement: otherwise lines that arrive quickly would pull a slow scroll back to the end.
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
        match (is_earlier_page, lines.has_gap(), lines.has_earlier()) {
            (true, ..) => format!("{count} from an earlier part"),
            (false, true, _) => format!("{count} loaded"),
            (false, false, true) => format!("Latest {count}"),
            (false, false, false) => count,
        }
    };
    let clock = use_page_clock();
    let first_day = Memo::new(move |_| lines.first_at().map(|at| clock.date_text(at)).unwrap_or_default());
    let zone = move || format!("Times in {}", clock.zone_text());
    let blocks = move || lines.blocks().get();
    view! {
        <div class="log">
            <div class="log-tools">
                <span class="muted">{count}</span>
                <span class="muted log-zone">{zone}</span>
                <LevelChips hidden_levels/>
                {is_earlier_page
                    .then(|| view! { <a class="btn btn-small right" href=format!("/occurrences/{id}")>"Show newest lines"</a> })}
                {jump_button}
            </div>
            <EarlierButton id lines/>
            <div class="log-scroll" id=LOG_SCROLL_ID tabindex="0" role="region" aria-label="Log lines" node_ref=scroller on:scroll=scrolled>
                <div class="log-lines">
                    <For each=blocks key=|block| block.key let:block>
                        <GapView id lines block=block.clone()/>
                        <BlockView lines=block.lines.into() hidden_levels first_day/>
                    </For>
                </div>
            </div>
            <p class="log-note" hidden=move || lines.count() != 0>
                {move || {
                    if open.get() { "No log output yet. New lines appear here." } else { "No log output is stored for this run." }
                }}
            </p>
        </div>
    }
}

/// One toggle per log level; lines of a pressed level are shown.
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
    view! { <div class="chips needs-js" role="group" aria-label="Log levels shown">{chips}</div> }
}

/// Loads the lines before the first one: in place with a script, as a separate page without.
#[component]
fn EarlierButton(id: OccurrenceId, lines: LogLines) -> impl IntoView {
    let failed = RwSignal::new(None::<String>);
    let action = UserAction::new(ErrorPlace::Text(failed));
    let load = move |event: ev::MouseEvent| {
        event.prevent_default();
        let Some(first) = untrack(|| lines.first_seq()) else { return };
        action.run(async move {
            let earlier = log_before(id, first).await?;
            // The page may have been left meanwhile.
            if failed.try_set(None).is_none() {
                let has_earlier = earlier.len() >= LOG_PAGE_LINES;
                if !has_earlier {
                    hand_focus(EARLIER_ID, LOG_SCROLL_ID);
                }
                lines.prepend(earlier, has_earlier);
            }
            Ok(None)
        });
    };
    let link = move || {
        let first = lines.first_seq()?;
        lines.has_earlier().then(|| {
            view! {
                <p class="log-note" id=EARLIER_ID>
                    <a
                        href=format!("/occurrences/{id}?log_before={first}")
                        on:click=load
                        aria-disabled=move || action.disabled()
                    >
                        "Load earlier lines"
                    </a>
                </p>
            }
        })
    };
    view! {
        {link}
        <p class="log-note" role="alert" hidden=move || failed.with(Option::is_none)>{move || failed.get().map(error_text)}</p>
    }
}

/// States the lines that are missing before a block, and loads them in pages from the first one.
#[component]
fn GapView(id: OccurrenceId, lines: LogLines, block: LogBlock) -> impl IntoView {
    let gap = RwSignal::from(block.gap);
    let key = block.key;
    let failed = RwSignal::new(None::<String>);
    let action = UserAction::new(ErrorPlace::Text(failed));
    let load = move |_| {
        let Some(LogGap { after, before, .. }) = gap.get_untracked() else { return };
        action.run(async move {
            let loaded = log_range(id, after, before).await?;
            // The page may have been left meanwhile, or the block dropped.
            if failed.try_set(None).is_none() {
                let is_complete = loaded.len() < LOG_PAGE_LINES;
                if is_complete {
                    hand_focus(LOG_SCROLL_ID, LOG_SCROLL_ID);
                }
                lines.fill_gap(key, loaded, is_complete);
            }
            Ok(None)
        });
    };
    let has_gap = Memo::new(move |_| gap.get().is_some());
    // One element for all pages, so that the button keeps the focus while the gap shrinks.
    move || {
        has_gap.get().then(|| {
            view! {
                <div class="log-gap">
                    <span>{move || gap.get().map(gap_text)}</span>
                    <button
                        type="button"
                        class="btn btn-small"
                        aria-disabled=move || action.disabled()
                        on:click=load
                    >
                        {move || gap.get().map(gap_action)}
                    </button>
                    <span role="alert" hidden=move || failed.with(Option::is_none)>{move || failed.get().map(error_text)}</span>
                </div>
            }
        })
    }
}

fn gap_text(gap: LogGap) -> String {
    match gap.count {
        Some(count) => format!("{} not loaded", format::plural(count, "line")),
        None => "Lines may be missing here".to_owned(),
    }
}

fn gap_action(gap: LogGap) -> &'static str {
    if gap.count.is_some_and(|count| usize::try_from(count).is_ok_and(|count| count > LOG_PAGE_LINES)) {
        "Load the next 500"
    } else {
        "Load them"
    }
}

#[component]
fn BlockView(
    lines: RwSignal<Vec<LogLine>>,
    hidden_levels: RwSignal<[bool; LOG_LEVELS.len()]>,
    first_day: Memo<String>,
) -> impl IntoView {
    let shown = move || {
        let hidden = hidden_levels.read();
        let lines = lines.read();
        lines.iter().filter(|line| !hidden[line.level as usize]).cloned().collect::<Vec<_>>()
    };
    // The browser may skip the layout of a block that is out of sight, because the style sheet states a full block's
    // height. A block that is not yet full is lower.
    let is_full = move || lines.read().len() >= LOG_BLOCK_LINES && !hidden_levels.read().contains(&true);
    let class = move || if is_full() { "log-block" } else { "log-tail" };
    view! {
        <ol class=class>
            <For each=shown key=|line| line.seq let:line>
                <LineView line first_day/>
            </For>
        </ol>
    }
}

#[component]
fn LineView(line: LogLine, first_day: Memo<String>) -> impl IntoView {
    let clock = use_page_clock();
    let at = line.at;
    let anchor = format!("line-{}", line.seq);
    let number = number(line.seq);
    let data = line.data.as_ref().map(log_fields_text).filter(|text| !text.is_empty());
    let data = data.map(|text| view! { <span class="muted">{text}</span> });
    view! {
        <li class="log-line" data-level=line.level.as_str() id=anchor>
            <span class="log-no">{number}</span>
            <time class="log-at" datetime=format::iso(at) title=format::utc(at)>
                {move || first_day.with(|day| clock.log_text(at, day))}
            </time>
            <span class="log-level">{line.level.as_str()}</span>
            <span class="log-text">{styled_view(&line.message)}{data}</span>
        </li>
    }
}

/// Shows output of a program: without styles as one text, and otherwise as one element for each style, so that a
/// selection and its copy contain no escape sequences.
fn styled_view(text: &str) -> AnyView {
    let parts = styled_text(text);
    if parts.iter().all(|part| part.style == TextStyle::default()) {
        return parts.into_iter().map(|part| part.text).collect::<String>().into_any();
    }
    let part = |StyledText { text, style }| {
        view! {
            <span data-color=style.color.map(TextColor::slug) data-bold=style.is_bold.then_some("true")>
                {text}
            </span>
        }
    };
    parts.into_iter().map(part).collect::<Vec<_>>().into_any()
}

/// Formats a line's number: counted from 1 within its attempt and, from the second attempt on, prefixed with the
/// attempt.
fn number(seq: i64) -> String {
    let (attempt, line) = (seq / 1_000_000, seq % 1_000_000 + 1);
    if attempt > 1 { format!("{attempt}:{line}") } else { line.to_string() }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::message::first_log_seq;

    use super::*;

    #[test]
    fn lines_are_numbered_within_their_attempt() {
        assert_eq!(number(first_log_seq(1)), "1");
        assert_eq!(number(first_log_seq(2) + 6), "2:7");
    }

    #[test]
    fn gap_states_its_lines_and_the_next_step() {
        let gap = |count| LogGap { after: 1, before: 5_000, count };
        assert_eq!(gap_text(gap(Some(1_234))), "1,234 lines not loaded");
        assert_eq!(gap_action(gap(Some(1_234))), "Load the next 500");
        assert_eq!((gap_text(gap(Some(1))).as_str(), gap_action(gap(Some(500)))), ("1 line not loaded", "Load them"));
        assert_eq!(gap_text(gap(None)), "Lines may be missing here");
    }

    #[test]
    fn log_levels_match_their_index() {
        for (index, level) in LOG_LEVELS.into_iter().enumerate() {
            assert_eq!(level as usize, index);
        }
    }
}
