//! Medians of repeated measurements, their ranges, and tables in Markdown.

use std::fmt::Write;

/// The values of one quantity, one per round.
#[derive(Clone, Default)]
pub struct Series(pub Vec<f64>);

impl Series {
    /// The median; 0 without values.
    #[must_use]
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }

    /// `median (lowest–highest)`, with this many decimals.
    #[must_use]
    pub fn range(&self, decimals: usize) -> String {
        let low = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.0.iter().copied().fold(0.0, f64::max);
        let median = self.median();
        format!("{median:.decimals$} ({low:.decimals$}–{high:.decimals$})")
    }

    /// The ratio to `other`: the median of the ratios of each round, because a disturbance of the
    /// machine in one round affects both.
    #[must_use]
    pub fn ratio_to(&self, other: &Self) -> f64 {
        let pairs = self.0.iter().zip(&other.0);
        Self(pairs.map(|(mine, theirs)| mine / theirs).collect()).median()
    }
}

/// Sorts samples for [`quantile`].
#[must_use]
pub fn sorted(samples: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut samples: Vec<u64> = samples.collect();
    samples.sort_unstable();
    samples
}

/// The value below which `share` of the sorted samples lie.
#[must_use]
pub fn quantile(sorted: &[u64], share: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or(0)
}

/// A table in Markdown: the first column is text, the others are numbers.
#[must_use]
pub fn table(title: &str, head: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = format!("\n## {title}\n\n| {} |\n", head.join(" | "));
    let _ = writeln!(out, "|---|{}", "--:|".repeat(head.len().saturating_sub(1)));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out
}
