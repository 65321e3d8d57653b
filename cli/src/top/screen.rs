//! The live screen: what is on it, what keys do, how it is drawn.
//!
//! Guarantees: it can be drawn in any size; a narrow terminal loses the columns that say
//! least, a low one the lines that hurt least, and never the other way round.

use super::{
    numbers::{per_second, percent},
    rates::{Rates, Row, Sort, Tally, rows},
    state::Snapshot,
};
use crate::table::thousands;
use ratatui::{
    Frame,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{Cell, Paragraph, Table, TableState},
};

/// Shares of host time from which on a line is yellow, and red.
const NOTABLE: f64 = 0.01;
const GRAVE: f64 = 0.1;
/// Lines that the table of reasons keeps while there are sidecores to show.
const LEAST_REASONS: u16 = 4;

/// What is on the screen.
pub struct Screen {
    session: u32,
    newest: Option<Snapshot>,
    rates: Rates,
    sort: Sort,
    /// The row whose reasons are shown; all rows' while none is chosen.
    chosen: Option<(usize, usize)>,
    /// What came since is kept out.
    held: bool,
    /// Seconds without an answer, once they are too many.
    silent: Option<u64>,
}

/// What a key asks for beyond the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To go on.
    Stay,
    /// To end.
    Quit,
}

/// The columns of the upper table: heading, width, and the terminal width from which on it is
/// shown.
const COLUMNS: [(&str, u16, u16); 6] = [
    ("CORE", 4, 34),
    ("POLICY", 6, 50),
    ("STATE", 10, 74),
    ("EXITS/S", 10, 0),
    ("INJECTED/S", 10, 62),
    ("HOST TIME", 9, 26),
];

impl Screen {
    /// Of a run that nothing is known of yet.
    pub fn new(session: u32) -> Screen {
        let (newest, rates, sort) = (None, Rates::default(), Sort::default());
        Screen { session, newest, rates, sort, chosen: None, held: false, silent: None }
    }

    /// Takes the run's next state in.
    pub fn hear(&mut self, snapshot: Snapshot) {
        self.silent = None;
        if !self.held {
            self.rates = Rates::between(self.newest.as_ref().unwrap_or(&snapshot), &snapshot);
        }
        self.newest = Some(snapshot);
    }

    /// Notes for how many seconds the run hasn't answered, if that is worth a word; true if
    /// that changes the screen.
    pub fn silent(&mut self, seconds: Option<u64>) -> bool {
        std::mem::replace(&mut self.silent, seconds) != seconds
    }

    /// Takes a key.
    pub fn key(&mut self, key: KeyEvent) -> Wish {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Wish::Quit;
            }
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Home => self.chosen = None,
            KeyCode::End => self.choose(isize::MAX),
            KeyCode::Right | KeyCode::Char('s' | '>') => self.resort(1),
            KeyCode::Left | KeyCode::Char('<') => self.resort(Sort::ALL.len() - 1),
            KeyCode::Char(' ') => self.held = !self.held,
            _ => {}
        }
        Wish::Stay
    }

    /// Moves the choice by so many rows; above the first row is all of them.
    fn choose(&mut self, by: isize) {
        let keys: Vec<_> = rows(&self.rates, self.sort).iter().map(|row| row.key).collect();
        // 0 is all of them.
        let now = keys.iter().position(|k| Some(*k) == self.chosen).map_or(0, |i| i + 1);
        let next = now.saturating_add_signed(by).min(keys.len());
        self.chosen = next.checked_sub(1).and_then(|i| keys.get(i)).copied();
    }

    fn resort(&mut self, by: usize) {
        let now = Sort::ALL.iter().position(|s| *s == self.sort).unwrap_or(0);
        self.sort = Sort::ALL[(now + by) % Sort::ALL.len()];
    }

    /// Draws it.
    pub fn draw(&self, frame: &mut Frame) {
        let rows = rows(&self.rates, self.sort);
        let vcpus = rows.len().min(usize::from(u16::MAX)) as u16;
        let area = frame.area();
        // The upper table has all its rows, or what the reasons leave when both can't have all.
        let upper = (vcpus + 1).min((area.height / 2).max(2));
        // Sidecores and their queues have what is left, but for some reasons.
        let served = self.served(area.width.into());
        let left = area.height.saturating_sub(upper + 3 + LEAST_REASONS);
        let served_height = if left < 3 { 0 } else { left.min(served.len() as u16) };
        let heights = [1, upper, 1, served_height].map(Constraint::Length);
        let rest = [Constraint::Fill(1), heights[0]];
        let layout = Layout::vertical(heights.into_iter().chain(rest));
        let [head, upper, _, middle, lower, foot] = layout.areas(area);
        let lines = served.into_iter().map(Line::from);
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), middle);
        frame.render_widget(self.head(head.width), head);
        self.draw_vcpus(&rows, frame, upper);
        self.draw_reasons(&rows, frame, lower);
        frame.render_widget(self.foot(), foot);
    }

    fn head(&self, width: u16) -> Paragraph<'_> {
        let vcpus: usize = self.rates.vms.iter().map(|vm| vm.vcpus.len()).sum();
        let mut text = format!("exitless {}", self.session);
        let mut more = vec![
            count(self.rates.vms.len(), "VM"),
            count(vcpus, "vCPU"),
            format!("over {:.2} s of the machine's clock", self.rates.seconds),
        ];
        let state = match (self.silent, self.held) {
            (Some(seconds), _) => Some(format!("no answer for {seconds} s")),
            (None, true) => Some("held".to_owned()),
            (None, false) => None,
        };
        if let Some(state) = state {
            more.insert(0, state);
        }
        for part in more {
            if text.len() + 3 + part.len() <= usize::from(width) {
                text += &format!(" · {part}");
            }
        }
        Paragraph::new(Line::from(text).style(Modifier::BOLD))
    }

    fn draw_vcpus(&self, rows: &[Row], frame: &mut Frame, area: Rect) {
        let shown: Vec<_> = COLUMNS.iter().filter(|c| area.width >= c.2).collect();
        let widths = [Constraint::Fill(1)].into_iter();
        let widths = widths.chain(shown.iter().map(|c| Constraint::Length(c.1)));
        let heads = shown.iter().map(|(head, width, _)| heading(head, *width));
        let heads: Vec<_> = [Cell::from("VM")].into_iter().chain(heads).collect();
        let lines = rows.iter().map(|row| {
            let cells = shown.iter().map(|(head, width, _)| cell(row, head, *width));
            let name = Cell::from(row.name());
            let line = ratatui::widgets::Row::new([name].into_iter().chain(cells));
            line.style(color(row.vcpu.map_or(0.0, |v| v.rates.host_share)))
        });
        let table = Table::new(lines, widths)
            .header(ratatui::widgets::Row::new(heads).style(Modifier::REVERSED))
            .row_highlight_style(Modifier::REVERSED);
        let chosen = rows.iter().position(|row| Some(row.key) == self.chosen);
        let mut state = TableState::default().with_selected(chosen);
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn draw_reasons(&self, rows: &[Row], frame: &mut Frame, area: Rect) {
        let row = rows.iter().find(|row| Some(row.key) == self.chosen);
        let (whose, tally) = match row {
            Some(row) => (row.name(), row.vcpu.map(|v| v.rates.clone()).unwrap_or_default()),
            None => ("all".to_owned(), self.rates.sum()),
        };
        let lines = tally.reasons.iter().map(|(reason, rate)| {
            let share = if tally.exits > 0.0 { rate / tally.exits } else { 0.0 };
            let total = thousands(tally.total.of(*reason));
            let cells = [per_second(*rate), percent(share), total];
            let cells = cells.into_iter().zip(REASONS).map(|(text, (_, width, from))| {
                (from, Cell::from(format!("{text:>0$}", usize::from(width))))
            });
            let cells = cells.filter(|(from, _)| area.width >= *from).map(|(_, cell)| cell);
            ratatui::widgets::Row::new([Cell::from(reason.label())].into_iter().chain(cells))
        });
        let shown = || REASONS.iter().filter(|c| area.width >= c.2);
        let widths = shown().map(|c| Constraint::Length(c.1));
        let heads = shown().map(|(head, width, _)| heading(head, *width));
        let heads = [Cell::from(reasons_of(&whose, &tally))].into_iter().chain(heads);
        let table = Table::new(lines, [Constraint::Fill(1)].into_iter().chain(widths))
            .header(ratatui::widgets::Row::new(heads).style(Modifier::REVERSED));
        frame.render_widget(table, area);
    }

    /// The lines of sidecores and of the queues that they serve; none without them.
    fn served(&self, width: usize) -> Vec<String> {
        let sidecores = &self.rates.sidecores;
        let tables = [sidecores.cores_table(), sidecores.queues_table()];
        let lines = tables.into_iter().flatten().flat_map(|table| {
            let lines: Vec<_> =
                table.within(width).to_string().lines().map(str::to_owned).collect();
            lines.into_iter().chain([String::new()])
        });
        lines.collect()
    }

    fn foot(&self) -> Paragraph<'_> {
        let keys = format!("q quit  ↑↓ whose exits  ←→ sort: {}  space hold", self.sort.label());
        Paragraph::new(Line::from(keys).style(Modifier::DIM))
    }
}

/// The columns of the lower table, as above.
const REASONS: [(&str, u16, u16); 3] = [("EXITS/S", 10, 0), ("SHARE", 9, 60), ("IN ALL", 15, 56)];

fn reasons_of(whose: &str, tally: &Tally) -> String {
    if tally.reasons.is_empty() {
        format!("NO EXITS OF {whose} SO FAR")
    } else {
        format!("EXITS OF {whose} BY REASON")
    }
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Headings stand above their numbers, which stand to the right, and words to the left.
fn heading(head: &str, width: u16) -> Cell<'static> {
    let width = usize::from(width);
    Cell::from(if is_word(head) { format!("{head:<width$}") } else { format!("{head:>width$}") })
}

fn is_word(head: &str) -> bool {
    matches!(head, "POLICY" | "STATE")
}

fn cell(row: &Row, head: &str, width: u16) -> Cell<'static> {
    let tally = row.vcpu.map(|v| &v.rates);
    let text = match head {
        "CORE" => row.vcpu.map(|v| v.core.to_string()),
        "POLICY" => row.vm.policy.clone(),
        "STATE" => Some(row.vm.state.clone()),
        "EXITS/S" => tally.map(|t| per_second(t.exits)),
        "INJECTED/S" => tally.map(|t| per_second(t.injected)),
        _ => tally.map(|t| percent(t.host_share)),
    };
    let (text, width) = (text.unwrap_or("-".to_owned()), usize::from(width));
    Cell::from(if is_word(head) { text } else { format!("{text:>width$}") })
}

fn color(share: f64) -> Style {
    match share {
        s if s >= GRAVE => Color::Red.into(),
        s if s >= NOTABLE => Color::Yellow.into(),
        _ => Style::default(),
    }
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
