//! Rejection of tabs that PyYAML's YAML 1.1 does not allow. Later versions of YAML, and the parser of this crate,
//! read them as spaces.

use crate::diagnostics::Diagnostic;
use crate::scalar::Position;

/// The parts of a text in which tabs are text: quoted scalars and blocks, as ranges of characters in order.
#[derive(Default)]
pub struct QuotedRanges(Vec<(usize, usize)>);

impl QuotedRanges {
    pub fn quoted(&mut self, start: usize, end: usize) {
        self.0.push((start, end));
    }

    /// A block begins on the line after its indicator.
    pub fn block(&mut self, letters: &[char], start: usize, end: usize) {
        let block = letters.get(start..end).unwrap_or_default();
        let has_indicator = block.first().is_some_and(|first| matches!(first, '|' | '>'));
        let header = block.iter().take_while(|letter| has_indicator && !matches!(letter, '\n' | '\r')).count();
        self.0.push((start + header, end));
    }

    /// An error for the first tab that is neither in these ranges nor in a comment.
    pub fn reject_other_tabs(&self, letters: &[char]) -> Result<(), Diagnostic> {
        let mut ranges = self.0.iter().peekable();
        let (mut position, mut before, mut in_comment) = (Position { line: 1, column: 1 }, ' ', false);
        for (index, &letter) in letters.iter().enumerate() {
            while ranges.next_if(|(_, end)| *end <= index).is_some() {}
            let in_text = ranges.peek().is_some_and(|(start, _)| *start <= index);
            in_comment = match letter {
                '\n' | '\r' => false,
                '#' => in_comment || !in_text && before.is_whitespace(),
                _ => in_comment,
            };
            if letter == '\t' && !in_text && !in_comment {
                let help = "use spaces; tabs are allowed only in quoted text, block scalars and comments";
                return Err(Diagnostic::error(position, "found character '\\t' that cannot start any token").help(help));
            }
            before = letter;
            position = match letter {
                '\n' => Position { line: position.line.saturating_add(1), column: 1 },
                _ => Position { line: position.line, column: position.column.saturating_add(1) },
            };
        }
        Ok(())
    }
}
