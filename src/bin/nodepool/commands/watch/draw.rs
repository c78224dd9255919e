//! Drawing of the view: a summary line, the tabs of the panes, the rows of one pane, and the keys.

use nodepool_model::records::component::ComponentKind;
use nodepool_model::records::request::RequestState;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::{Snapshot, nodes_by_state};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use unicode_width::UnicodeWidthStr;

use super::panes::{List, Pane};
use super::view::View;

/// Maximum width of a cell; wider cells are truncated.
const MAX_CELL_WIDTH: usize = 48;
const SPACING: u16 = 2;
const KEYS: &str = "q quit  Tab pane  ↑↓ row  / filter  s sort  r reverse";

pub fn draw(frame: &mut Frame<'_>, view: &mut View, now: Timestamp) {
    let lines = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
    let [summary, tabs, body, keys] = Layout::vertical(lines).areas(frame.area());
    view.page_size = usize::from(body.height.saturating_sub(1));
    let list = view.list(now);
    frame.render_widget(Paragraph::new(summary_line(&view.snapshot)), summary);
    frame.render_widget(Paragraph::new(tabs_line(view, list.rows.len())), tabs);
    draw_list(frame, body, view, list);
    frame.render_widget(Paragraph::new(keys_line(view)), keys);
}

fn summary_line(snapshot: &Snapshot) -> Line<'static> {
    let mut spans = Vec::new();
    if !snapshot.connected {
        let alarm = Style::new().fg(Color::White).bg(Color::Red).add_modifier(Modifier::BOLD);
        spans.extend([Span::styled(" no connection to ZooKeeper ", alarm), Span::raw(" ")]);
    }
    spans.push(Span::raw(format!("nodes {}", snapshot.node_count())));
    for (state, count) in nodes_by_state(snapshot).into_iter().filter(|(_, count)| *count > 0) {
        spans.push(Span::raw("  "));
        spans.push(Span::styled(format!("{} {count}", state.as_str()), style_of(state.as_str())));
    }
    let requests: Vec<_> = snapshot.requests().collect();
    let in_state = |state| requests.iter().filter(|(_, stored)| stored.record.state == state).count();
    spans.push(Span::raw(format!("   requests {}", requests.len())));
    for state in [RequestState::Requested, RequestState::Pending, RequestState::Failed] {
        if in_state(state) > 0 {
            spans.push(Span::raw("  "));
            spans.push(Span::styled(format!("{} {}", state.as_str(), in_state(state)), style_of(state.as_str())));
        }
    }
    let online = |kind| snapshot.components().filter(|((of, _), _)| *of == kind).count();
    let (launchers, builders) = (online(ComponentKind::Launcher), online(ComponentKind::Builder));
    spans.push(Span::raw(format!("   launchers {launchers}  builders {builders}")));
    match snapshot.unreadable().count() {
        0 => {}
        some => spans.push(Span::styled(format!("   unreadable {some}"), style_of("failed"))),
    }
    Line::from(spans)
}

fn tabs_line(view: &View, shown: usize) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, pane) in (1..).zip(Pane::ALL) {
        let style = match pane == view.pane {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new().add_modifier(Modifier::DIM),
        };
        spans.extend([Span::styled(format!(" {number} {} ", pane.title()), style), Span::raw(" ")]);
    }
    let selected = if shown == 0 { 0 } else { view.selected + 1 };
    spans.push(Span::raw(format!(" {selected}/{shown}")));
    Line::from(spans)
}

fn keys_line(view: &View) -> Line<'static> {
    let filter = python_yaml::text::printable(view.filter.clone());
    if view.is_typing {
        return Line::from(format!("/{filter}▏  Enter keep  Esc clear"));
    }
    if !filter.is_empty() {
        return Line::from(format!("filter: {filter} (Esc clears)   {KEYS}"));
    }
    Line::styled(KEYS, Style::new().add_modifier(Modifier::DIM))
}

/// Draws the visible rows of a list; no widgets are built for the others.
fn draw_list(frame: &mut Frame<'_>, area: Rect, view: &View, list: List) {
    let (sorted, is_reversed) = (view.order().column, view.order().is_reversed);
    let headers: Vec<String> = list
        .headers
        .iter()
        .enumerate()
        .map(|(index, header)| match (sorted == Some(index), is_reversed) {
            (true, false) => format!("{header} ▲"),
            (true, true) => format!("{header} ▼"),
            (false, _) => (*header).to_owned(),
        })
        .collect();
    let rows: Vec<Vec<String>> = list.rows.into_iter().skip(view.first_visible).take(view.page_size).collect();
    let width_of = |index: usize| {
        let cells = rows.iter().map(|row| row[index].width()).max().unwrap_or(0);
        cells.max(headers[index].width()).min(MAX_CELL_WIDTH)
    };
    // The first columns are the most important, so the last ones are omitted if the width is too small.
    let mut remaining = usize::from(area.width);
    let mut widths = Vec::new();
    for width in (0..headers.len()).map(width_of) {
        if remaining == 0 {
            break;
        }
        let width = width.min(remaining);
        widths.push(Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
        remaining = remaining.saturating_sub(width + usize::from(SPACING));
    }
    let shown = widths.len();
    let state = list.headers.iter().position(|header| *header == "State");
    let row = |(index, cells): (usize, Vec<String>)| {
        let style = state.map_or(Style::new(), |column| style_of(&cells[column]));
        let style = match view.first_visible + index == view.selected {
            true => style.add_modifier(Modifier::REVERSED),
            false => style,
        };
        Row::new(cells.into_iter().take(shown)).style(style)
    };
    let table = Table::new(rows.into_iter().enumerate().map(row), widths)
        .header(Row::new(headers.into_iter().take(shown)).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(SPACING);
    frame.render_widget(table, area);
}

/// Style of a state, of any kind of object.
fn style_of(state: &str) -> Style {
    match state {
        "ready" | "fulfilled" => Style::new().fg(Color::Green),
        "building" | "init" | "testing" | "uploading" | "pending" => Style::new().fg(Color::Yellow),
        "in-use" => Style::new().fg(Color::Cyan),
        "hold" | "paused" => Style::new().fg(Color::Magenta),
        "failed" | "aborted" => Style::new().fg(Color::Red),
        "used" | "deleting" | "deleted" => Style::new().add_modifier(Modifier::DIM),
        _ => Style::new(),
    }
}
