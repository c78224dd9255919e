//! Coalesces the declines of one request by several pools of a launcher into one write.
//!
//! Separate writes would conflict: all but one would fail, and their pools would decide again. A request that 500 pools
//! declined caused more than 100,000 transactions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use nodepool_model::records::ids::RequestId;
use nodepool_model::records::request::RequestState;
use nodepool_model::snapshot::{RequestChange, WriteError};

/// Declines that wait while a write of their request is in progress.
#[derive(Default)]
pub struct DeclineBatcher(Mutex<HashMap<RequestId, Vec<WaitingDecline>>>);

struct WaitingDecline {
    change: RequestChange,
    answer: oneshot::Sender<Result<(), WriteError>>,
}

impl DeclineBatcher {
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Vec<WaitingDecline>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Role {
    Writer(BatchWriter),
    Waiting(oneshot::Receiver<Result<(), WriteError>>),
}

/// Held by the pool that writes the batch. If it is dropped early, the waiting pools receive `Conflict` and decide
/// again.
struct BatchWriter {
    batcher: Arc<DeclineBatcher>,
    id: RequestId,
    is_finished: bool,
}

impl BatchWriter {
    /// The declines that arrived during the last write. If there are none, the batch is finished.
    fn next(&mut self) -> Option<Vec<WaitingDecline>> {
        let mut in_progress = self.batcher.lock();
        let waiting = in_progress.get_mut(&self.id).map(std::mem::take).filter(|waiting| !waiting.is_empty());
        if waiting.is_none() {
            in_progress.remove(&self.id);
            self.is_finished = true;
        }
        waiting
    }
}

impl Drop for BatchWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            self.batcher.lock().remove(&self.id);
        }
    }
}

impl DeclineBatcher {
    /// Writes a decline. Declines of the same request that arrive during a write are merged into the next write.
    pub async fn decline<F>(
        self: &Arc<Self>,
        request: RequestChange,
        write: impl Fn(RequestChange) -> F,
    ) -> Result<(), WriteError>
    where
        F: Future<Output = Result<(), WriteError>>,
    {
        let mut writer = match self.role(&request) {
            Role::Writer(writer) => writer,
            Role::Waiting(answer) => return answer.await.unwrap_or(Err(WriteError::Conflict)),
        };
        let mut last = request;
        let mut result = write(last.clone()).await;
        let own = result.clone();
        while let Some(waiting) = writer.next() {
            let (fit, outdated): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|waiting| waiting.change.version == last.version);
            // A waiting pool may have dropped its receiver.
            let notify = |waiting: Vec<WaitingDecline>, result: &Result<(), WriteError>| {
                waiting.into_iter().for_each(|waiting| drop(waiting.answer.send(result.clone())));
            };
            notify(outdated, &Err(WriteError::Conflict));
            match result {
                Ok(()) if fit.is_empty() => {}
                Ok(()) if last.record.state == RequestState::Requested => {
                    last = merged(last, &fit);
                    result = write(last.clone()).await;
                    notify(fit, &result);
                }
                Ok(()) => notify(fit, &Err(WriteError::Conflict)),
                Err(_) => notify(fit, &result),
            }
        }
        own
    }

    fn role(self: &Arc<Self>, request: &RequestChange) -> Role {
        let mut in_progress = self.lock();
        if let Some(waiting) = in_progress.get_mut(&request.id) {
            let (answer, answered) = oneshot::channel();
            waiting.push(WaitingDecline { change: request.clone(), answer });
            return Role::Waiting(answered);
        }
        in_progress.insert(request.id.clone(), Vec::new());
        Role::Writer(BatchWriter { batcher: self.clone(), id: request.id.clone(), is_finished: false })
    }
}

/// The next write: `written` with the changes of the other declines, which are based on the same record.
fn merged(written: RequestChange, others: &[WaitingDecline]) -> RequestChange {
    let mut next = RequestChange { version: written.version + 1, ..written };
    for WaitingDecline { change, .. } in others {
        for name in &change.record.declined_by {
            if !next.record.declined_by.contains(name) {
                next.record.declined_by.push(name.clone());
            }
        }
        if change.record.state != next.record.state {
            next.record.set_state(change.record.state, change.record.state_time);
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures::future::join_all;

    use super::*;
    use nodepool_model::records::request::NodeRequest;
    use nodepool_model::records::time::Timestamp;

    fn change(version: i32, pool: &str) -> RequestChange {
        let record = NodeRequest::new(vec!["a".into()], "tester", Timestamp(0.0));
        RequestChange { id: "200-1".into(), record: NodeRequest { declined_by: vec![pool.into()], ..record }, version }
    }

    /// Pools decline concurrently: checks the content of each write and the result of each decline.
    async fn check(
        pools: Vec<RequestChange>,
        answer: Result<(), WriteError>,
        written: &[&[&str]],
        expected_results: &[Result<(), WriteError>],
    ) {
        let (declines, seen) = (Arc::new(DeclineBatcher::default()), RefCell::new(Vec::new()));
        let write = |change: RequestChange| {
            seen.borrow_mut().push((change.version, change.record.declined_by));
            let answer = answer.clone();
            async {
                tokio::task::yield_now().await;
                answer
            }
        };
        let first = pools[0].version;
        let results = join_all(pools.into_iter().map(|pool| declines.decline(pool, write))).await;
        assert_eq!(results, expected_results);
        let expected = written.iter().zip(first..);
        let expected: Vec<(i32, Vec<_>)> =
            expected.map(|(names, version)| (version, names.iter().map(|name| (*name).into()).collect())).collect();
        assert_eq!(seen.into_inner(), expected);
        assert!(declines.lock().is_empty());
    }

    #[tokio::test]
    async fn concurrent_declines_share_a_write() {
        check(vec![change(3, "a")], Ok(()), &[&["a"]], &[Ok(())]).await;
        let three = || ["a", "b", "c"].map(|pool| change(3, pool)).into();
        check(three(), Ok(()), &[&["a"], &["a", "b", "c"]], &[Ok(()), Ok(()), Ok(())]).await;
        let contended = || Err(WriteError::Contended);
        check(three(), contended(), &[&["a"]], &[contended(), contended(), contended()]).await;
        let outdated = vec![change(3, "a"), change(2, "b")];
        check(outdated, Ok(()), &[&["a"]], &[Ok(()), Err(WriteError::Conflict)]).await;
    }

    #[tokio::test]
    async fn a_decline_after_the_request_failed_conflicts() {
        let mut last = change(3, "a");
        last.record.set_state(RequestState::Failed, Timestamp(1.0));
        let expected_results = [Ok(()), Err(WriteError::Conflict)];
        check(vec![last, change(3, "b")], Ok(()), &[&["a"]], &expected_results).await;
        let mut last = change(3, "b");
        last.record.set_state(RequestState::Failed, Timestamp(1.0));
        check(vec![change(3, "a"), last], Ok(()), &[&["a"], &["a", "b"]], &[Ok(()), Ok(())]).await;
    }
}
