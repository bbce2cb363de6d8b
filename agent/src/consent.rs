//! Decides when a destructive call proceeds: after a person accepted it, or with the number of a
//! dry run as `confirm`. (core)
//!
//! # Invariants
//!
//! 1. A dry run never proceeds.
//! 2. Where a person can be asked, `confirm` alone does not suffice.
//! 3. What proceeds affects about as many deliveries as were agreed to: exactly as many up to 100,
//!    and at most a tenth more beyond, since traffic does not stand still.
//!
//! Not here: asking (`server`).

use crate::output::Output;
use serde_json::json;
use weir_client::body::Count;

/// Up to here a confirmed number must be exact.
const EXACT_MAX: u64 = 100;

/// How consent can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consent {
    /// The client can ask a person; the number is what one has accepted.
    Person(Option<u64>),
    /// It cannot: `confirm` decides.
    Number,
}

/// What a destructive call would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// What happens, as a sentence for a person.
    pub text: String,
    /// How many deliveries it affects.
    pub count: Count,
}

/// What happens to a destructive call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It proceeds.
    Proceed,
    /// It ends with this.
    End(Output),
    /// A person is asked first.
    Ask(Effect),
}

/// What a call was sent with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Whether nothing is to be done.
    pub dry_run: bool,
    /// The number of a dry run.
    pub confirm: Option<u64>,
}

/// Decides.
#[must_use]
pub(crate) fn decide(effect: Effect, asked: Asked, consent: Consent) -> Verdict {
    let number = effect.count.count;
    if asked.dry_run {
        let at_least = if effect.count.at_least { "at least " } else { "" };
        let summary = format!(
            "Dry run, nothing was done. {} Deliveries affected: {at_least}{number}. To proceed, \
             call again without dry_run and with confirm: {number}.",
            effect.text
        );
        let value = json!({"dry_run": true, "effect": effect.text, "count": effect.count,
            "confirm": number});
        return Verdict::End(Output::new(summary, value));
    }
    let agreed = match consent {
        Consent::Person(accepted) => accepted,
        Consent::Number => asked.confirm,
    };
    match (consent, agreed) {
        (_, Some(agreed)) if covers(agreed, number) => Verdict::Proceed,
        (Consent::Person(_), _) => Verdict::Ask(effect),
        (Consent::Number, agreed) => {
            let why = match agreed {
                Some(agreed) => format!("confirm: {agreed} does not match"),
                None => "This needs confirmation".to_owned(),
            };
            let summary = format!(
                "{why}; nothing was done. {} Deliveries affected now: {number}. Let the person you \
                 work for decide; then call again with confirm: {number}.",
                effect.text
            );
            let value = json!({"confirmation_required": true, "effect": effect.text,
                "count": effect.count, "confirm": number});
            Verdict::End(Output::error(summary, value))
        }
    }
}

/// Whether what was agreed to covers what would happen now.
fn covers(agreed: u64, now: u64) -> bool {
    let slack = if now > EXACT_MAX { agreed / 10 } else { 0 };
    agreed.abs_diff(now) <= slack
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(count: u64, asked: Asked, consent: Consent) -> Verdict {
        let count = Count { count, at_least: false };
        decide(Effect { text: "It moves.".into(), count }, asked, consent)
    }

    fn confirm(number: u64) -> Asked {
        Asked { confirm: Some(number), dry_run: false }
    }

    #[test]
    fn a_dry_run_ends_whatever_was_agreed_to() {
        for consent in [Consent::Number, Consent::Person(Some(7))] {
            let asked = Asked { dry_run: true, confirm: Some(7) };
            let Verdict::End(output) = verdict(7, asked, consent) else { panic!("{consent:?}") };
            assert!(!output.is_error && output.value["confirm"] == 7, "{output:?}");
        }
    }

    #[test]
    fn a_number_suffices_only_where_no_person_can_be_asked() {
        assert_eq!(verdict(7, confirm(7), Consent::Number), Verdict::Proceed);
        assert!(matches!(verdict(7, confirm(7), Consent::Person(None)), Verdict::Ask(_)));
        assert_eq!(verdict(7, Asked::default(), Consent::Person(Some(7))), Verdict::Proceed);
    }

    #[test]
    fn without_the_right_number_nothing_happens_and_the_right_one_is_named() {
        for asked in [Asked::default(), confirm(6), confirm(8), confirm(u64::MAX)] {
            let Verdict::End(output) = verdict(7, asked, Consent::Number) else {
                panic!("{asked:?} proceeds")
            };
            assert!(output.is_error && output.summary.contains("confirm: 7"), "{output:?}");
        }
        assert!(matches!(verdict(8, confirm(8), Consent::Person(Some(7))), Verdict::Ask(_)));
    }

    #[test]
    fn beyond_a_hundred_a_tenth_may_have_come_or_gone() {
        for (agreed, now, is_covered) in [
            (100, 100, true),
            (100, 99, false),
            (0, 1, false),
            (1_000, 1_100, true),
            (1_000, 1_101, false),
            (1_000, 900, true),
            (1_000, 899, false),
            (1_000, 100, false),
            (u64::MAX, 101, false),
        ] {
            assert_eq!(covers(agreed, now), is_covered, "{agreed} {now}");
        }
    }
}
