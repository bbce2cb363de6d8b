//! Counts what happened, to show that the runs exercise the dispatcher.

use std::fmt;
use std::ops::AddAssign;

macro_rules! counts {
    ($($field:ident: $label:literal,)*) => {
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Counts {
            $(pub(crate) $field: u64,)*
        }

        impl AddAssign for Counts {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }

        impl fmt::Display for Counts {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let all = [$((self.$field, $label)),*];
                let all = all.map(|(count, label)| format!("{count} {label}"));
                f.write_str(&all.join(", "))
            }
        }
    };
}

counts! {
    steps: "steps",
    events: "events",
    starts: "attempts",
    delivered: "delivered",
    failed: "given up",
    again: "retries scheduled",
    duplicates: "duplicates",
    crashes: "crashes",
    stops: "stops",
    stalls: "stalls",
    reloads: "reloads",
    pauses: "pauses",
    reactivations: "reactivations",
    warnings: "warnings",
    mails: "mails",
    told: "events for operators",
    transcripts: "transcripts",
    cancelled: "jobs cancelled",
    pages: "pages",
    commits: "commits",
}
