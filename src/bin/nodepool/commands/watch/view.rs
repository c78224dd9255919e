//! State of the view (snapshot, pane, filter, order and selection), and the effects of keys on it.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::Snapshot;

use super::panes::{List, Pane};

/// With more rows than this, ages are redrawn less often, because formatting them takes time.
const MANY_ROWS: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewAction {
    Nothing,
    Redraw,
    Quit,
}

/// The order of the rows of a pane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SortOrder {
    /// `None` is the order of the lists.
    pub column: Option<usize>,
    pub is_reversed: bool,
}

pub struct View {
    pub snapshot: Arc<Snapshot>,
    pub pane: Pane,
    /// Only rows that contain this text are shown.
    pub filter: String,
    /// Whether the filter is being typed.
    pub is_typing: bool,
    /// Index of the selected row.
    pub selected: usize,
    /// Index of the first row on the screen.
    pub first_visible: usize,
    /// Order of each pane.
    orders: [SortOrder; Pane::ALL.len()],
    columns: usize,
    rows: usize,
    /// Rows that fit on the screen.
    pub page_size: usize,
}

impl View {
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            snapshot,
            pane: Pane::Labels,
            filter: String::new(),
            is_typing: false,
            selected: 0,
            first_visible: 0,
            orders: [SortOrder::default(); Pane::ALL.len()],
            columns: 0,
            rows: 0,
            page_size: 1,
        }
    }

    pub fn set_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        self.snapshot = snapshot;
    }

    pub fn order(&self) -> SortOrder {
        self.orders[self.pane as usize]
    }

    /// Duration for which the displayed ages stay valid.
    pub fn refresh_interval(&self) -> Duration {
        match self.rows {
            _ if self.pane == Pane::Labels => Duration::from_secs(3600),
            0 => Duration::from_secs(3600),
            few if few <= MANY_ROWS => Duration::from_secs(1),
            _ => Duration::from_secs(10),
        }
    }

    /// The rows of the pane, filtered and sorted; clamps the selection to them.
    pub fn list(&mut self, now: Timestamp) -> List {
        let mut list = self.pane.list(&self.snapshot, now);
        if !self.filter.is_empty() {
            let needle = self.filter.to_lowercase();
            list.rows.retain(|row| row.iter().any(|cell| cell.to_lowercase().contains(&needle)));
        }
        let SortOrder { column, is_reversed } = self.order();
        if let Some(column) = column {
            list.rows.sort_by(|one, other| compare(&one[column], &other[column]));
        }
        if is_reversed {
            list.rows.reverse();
        }
        (self.rows, self.columns) = (list.rows.len(), list.headers.len());
        self.scroll_to_selection();
        list
    }

    fn scroll_to_selection(&mut self) {
        self.selected = self.selected.min(self.rows.saturating_sub(1));
        let lowest_first = (self.selected + 1).saturating_sub(self.page_size.max(1));
        self.first_visible = self.first_visible.clamp(lowest_first, self.selected);
        // While there are rows above the screen, no empty lines are shown below the last row.
        self.first_visible = self.first_visible.min(self.rows.saturating_sub(self.page_size.max(1)));
    }

    pub fn handle_event(&mut self, event: Event) -> ViewAction {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.on_key(key),
            Event::Resize(..) => ViewAction::Redraw,
            _ => ViewAction::Nothing,
        }
    }

    fn on_key(&mut self, key: KeyEvent) -> ViewAction {
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if with_control => return ViewAction::Quit,
            // Ctrl-L redraws, as in other terminal programs.
            KeyCode::Char('l') if with_control => return ViewAction::Redraw,
            KeyCode::Char(_) if with_control => return ViewAction::Nothing,
            _ => {}
        }
        if self.is_typing { self.type_filter(key.code) } else { self.command(key.code) }
    }

    fn type_filter(&mut self, code: KeyCode) -> ViewAction {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character) => self.filter.push(character),
            _ => return ViewAction::Nothing,
        }
        ViewAction::Redraw
    }

    fn command(&mut self, code: KeyCode) -> ViewAction {
        let page = self.page_size.max(1);
        match code {
            KeyCode::Char('q') => return ViewAction::Quit,
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.switch_pane(self.pane.next()),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Char('h') => self.switch_pane(self.pane.previous()),
            KeyCode::Char(digit @ '1'..='6') => self.switch_pane(Pane::ALL[digit as usize - '1' as usize]),
            KeyCode::Down | KeyCode::Char('j') => self.selected += 1,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.selected += page,
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(page),
            KeyCode::Home | KeyCode::Char('g') => self.selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.selected = usize::MAX - 1,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('s') => self.sort_by_next(),
            KeyCode::Char('r') => {
                let order = &mut self.orders[self.pane as usize];
                order.is_reversed = !order.is_reversed;
            }
            _ => return ViewAction::Nothing,
        }
        ViewAction::Redraw
    }

    fn switch_pane(&mut self, pane: Pane) {
        (self.pane, self.selected, self.first_visible) = (pane, 0, 0);
    }

    /// Selects the next column to sort by; after the last, the order of the lists.
    fn sort_by_next(&mut self) {
        let order = &mut self.orders[self.pane as usize];
        let next = order.column.map_or(0, |column| column + 1);
        order.column = (next < self.columns).then_some(next);
    }
}

/// Compares numbers by value, ages by duration, everything else as text.
fn compare(one: &str, other: &str) -> Ordering {
    match (numeric_value(one), numeric_value(other)) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        _ => one.cmp(other),
    }
}

fn numeric_value(text: &str) -> Option<f64> {
    match text.split(':').collect::<Vec<_>>()[..] {
        [number] => number.parse().ok(),
        [days, hours, minutes, seconds] => {
            let part = |text: &str| text.parse::<f64>().ok();
            Some(((part(days)? * 24.0 + part(hours)?) * 60.0 + part(minutes)?) * 60.0 + part(seconds)?)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::snapshot::versioned::Versioned;

    /// A view of three nodes of two providers.
    fn view() -> View {
        let mut snapshot = Snapshot::default();
        let records = [
            ("0000000001", r#"{"state": "ready", "provider": "b", "type": ["x"], "state_time": 90.0}"#),
            ("0000000002", r#"{"state": "in-use", "provider": "a", "type": ["标签"], "state_time": 50.0}"#),
            ("0000000003", r#"{"state": "ready", "provider": "a", "type": ["x"], "comment": "\u001b[2J"}"#),
        ];
        for (mzxid, (id, record)) in (1..).zip(records) {
            let record = Arc::new(serde_json::from_str(record).unwrap());
            snapshot.put_node(id.into(), Versioned { record, version: 0, mzxid, mtime_ms: 0 });
        }
        View::new(Arc::new(snapshot))
    }

    fn press(view: &mut View, keys: &str) -> ViewAction {
        let mut last = ViewAction::Nothing;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\u{1b}' => KeyCode::Esc,
                '\u{8}' => KeyCode::Backspace,
                other => KeyCode::Char(other),
            };
            last = view.handle_event(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
            view.list(Timestamp(100.0));
        }
        last
    }

    fn first_column(view: &mut View) -> Vec<String> {
        view.list(Timestamp(100.0)).rows.into_iter().map(|mut row| row.swap_remove(0)).collect()
    }

    #[test]
    fn labels_are_counted_by_state_and_provider() {
        let rows = view().list(Timestamp(100.0)).rows;
        let shown: Vec<String> = rows.iter().map(|row| row.join("|")).collect();
        assert_eq!(shown, ["a|x|1||1|||||", "a|标签|1|||1||||", "b|x|1||1|||||"]);
    }

    #[test]
    fn a_filter_applies_while_it_is_typed_and_is_cleared_by_esc() {
        let mut view = view();
        press(&mut view, "2/IN-usq");
        assert_eq!(first_column(&mut view), Vec::<String>::new());
        press(&mut view, "\u{8}\n");
        assert_eq!(first_column(&mut view), ["0000000002"]);
        // Outside the filter the same key ends the view.
        assert_eq!(press(&mut view, "\u{1b}q"), ViewAction::Quit);
        assert_eq!(first_column(&mut view).len(), 3);
    }

    #[test]
    fn rows_are_sorted_by_any_column_and_ages_by_duration() {
        let mut view = view();
        press(&mut view, "2ss");
        assert_eq!(first_column(&mut view), ["0000000002", "0000000003", "0000000001"]);
        press(&mut view, "ssssss");
        assert_eq!(view.order().column, Some(7));
        assert_eq!(first_column(&mut view), ["0000000001", "0000000002", "0000000003"]);
        press(&mut view, "r");
        assert_eq!(first_column(&mut view), ["0000000003", "0000000002", "0000000001"]);
        press(&mut view, "ssr");
        assert_eq!(view.order(), SortOrder::default());
    }

    #[test]
    fn the_selection_stays_on_a_row_and_visible() {
        let mut view = view();
        view.page_size = 2;
        press(&mut view, "2jjjj");
        assert_eq!((view.selected, view.first_visible), (2, 1));
        press(&mut view, "k");
        assert_eq!((view.selected, view.first_visible), (1, 1));
        press(&mut view, "g");
        assert_eq!((view.selected, view.first_visible), (0, 0));
        press(&mut view, "G");
        assert_eq!((view.selected, view.first_visible), (2, 1));
        press(&mut view, "/0000000001\n");
        assert_eq!((view.selected, view.first_visible), (0, 0));
    }

    #[test]
    fn ctrl_c_ends_the_view_even_while_a_filter_is_typed() {
        let mut view = view();
        press(&mut view, "/");
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.handle_event(Event::Key(key)), ViewAction::Quit);
        assert_eq!(view.handle_event(Event::Resize(10, 10)), ViewAction::Redraw);
    }
}
