//! Forms that were sent, so that one that is sent again (a double click, a reload of its result) is
//! not done again: it gets the same page.
//!
//! # Invariants
//!
//! 1. While a form is remembered, it is done at most once. What failed is done when it is sent
//!    again.
//! 2. At most [`OF_SESSION_MAX`] forms of one session are remembered, and [`FORMS_MAX`] of all;
//!    the oldest are forgotten.
//!
//! Not here: which forms are remembered (`dashboard`).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::OnceCell;
use weir_common::http_server::reply::Reply;

use crate::dashboard::page_error::PageError;

/// Forms of one session: those of its open tabs.
const OF_SESSION_MAX: usize = 8;

/// Forms of all sessions. A page that answers one has a few KiB.
const FORMS_MAX: usize = 512;

/// The forms that were sent.
#[derive(Default)]
pub(super) struct SentForms(Mutex<VecDeque<SentForm>>);

struct SentForm {
    session: [u8; 32],
    /// A digest of its path and its fields.
    form: [u8; 32],
    page: Arc<OnceCell<Page>>,
}

/// A reply that can be sent again.
struct Page {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

impl SentForms {
    /// Does what a form says, or returns the page that it got before.
    pub(super) async fn once(
        &self,
        session: [u8; 32],
        form: [u8; 32],
        done: impl Future<Output = Result<Reply, PageError>>,
    ) -> Result<Reply, PageError> {
        let page = self.page(session, form);
        let done = async {
            match done.await {
                Ok(Reply { status, headers, body, rest: None }) if status < 400 => {
                    Ok(Page { status, headers, body })
                }
                other => Err(other),
            }
        };
        match page.get_or_try_init(|| done).await {
            Ok(Page { status, headers, body }) => {
                let (status, headers, body) = (*status, headers.clone(), body.clone());
                Ok(Reply { status, headers, body, rest: None })
            }
            Err(other) => other,
        }
    }

    /// Where the page of a form is, or will be.
    fn page(&self, session: [u8; 32], form: [u8; 32]) -> Arc<OnceCell<Page>> {
        let mut forms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_own = |one: &SentForm| one.session == session;
        if let Some(sent) = forms.iter().find(|one| is_own(one) && one.form == form) {
            return Arc::clone(&sent.page);
        }
        if forms.iter().filter(|one| is_own(one)).count() >= OF_SESSION_MAX {
            let oldest = forms.iter().position(is_own);
            oldest.and_then(|at| forms.remove(at));
        }
        if forms.len() >= FORMS_MAX {
            forms.pop_front();
        }
        let page = Arc::new(OnceCell::new());
        forms.push_back(SentForm { session, form, page: Arc::clone(&page) });
        page
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;

    /// Sends a form, whose page says how many were done before.
    async fn send(forms: &SentForms, count: &AtomicU16, (session, form): (u8, u16)) -> String {
        let mut digest = [0; 32];
        digest[..2].copy_from_slice(&form.to_le_bytes());
        let done = async {
            tokio::task::yield_now().await;
            let nth = count.fetch_add(1, Ordering::SeqCst);
            Ok(Reply::new(200, "text/plain", nth.to_string()))
        };
        let reply = forms.once([session; 32], digest, done).await.expect("a page");
        String::from_utf8_lossy(&reply.body).into_owned()
    }

    #[tokio::test]
    async fn a_form_that_is_sent_again_gets_the_page_of_the_first() {
        let (forms, count) = (SentForms::default(), AtomicU16::new(0));
        let [first, second] = [(); 2].map(|()| send(&forms, &count, (1, 1)));
        assert_eq!(tokio::join!(first, second), ("0".to_owned(), "0".to_owned()), "a double click");
        assert_eq!(send(&forms, &count, (1, 1)).await, "0", "a reload");
        assert_eq!(send(&forms, &count, (1, 2)).await, "1", "other fields");
        assert_eq!(send(&forms, &count, (2, 1)).await, "2", "another session");
    }

    #[tokio::test]
    async fn what_failed_is_done_when_it_is_sent_again() {
        let forms = SentForms::default();
        let refused = Reply::new(422, "text/plain", "");
        let refused = forms.once([1; 32], [1; 32], async { Ok(refused) }).await;
        assert_eq!(refused.expect("a page").status, 422);
        let failed = forms.once([1; 32], [1; 32], async { Err(PageError::not_found()) }).await;
        assert!(failed.is_err());
        assert_eq!(send(&forms, &AtomicU16::new(0), (1, 1)).await, "0");
    }

    #[tokio::test]
    async fn a_session_forgets_its_own_oldest_forms_and_none_of_others() {
        let (forms, count) = (SentForms::default(), AtomicU16::new(0));
        send(&forms, &count, (1, 0)).await;
        for form in 0..=OF_SESSION_MAX as u16 {
            send(&forms, &count, (2, form)).await;
        }
        assert_eq!(send(&forms, &count, (1, 0)).await, "0");
        assert_eq!(send(&forms, &count, (2, 1)).await, "2", "the oldest that is left");
        assert_eq!(send(&forms, &count, (2, 0)).await, (OF_SESSION_MAX + 2).to_string());
        for session in 3..=u8::MAX {
            for form in 0..OF_SESSION_MAX as u16 {
                send(&forms, &count, (session, form)).await;
            }
        }
        assert_eq!(forms.0.lock().expect("no test has panicked").len(), FORMS_MAX);
    }
}
