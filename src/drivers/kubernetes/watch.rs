//! Watches: the streams of changes of namespaces and pods, and the objects as the cluster last reported them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream, SelectAll, Stream};
use futures::{FutureExt, StreamExt};
use kube::client::Body;
use serde_json::Value;
use tokio::sync::Mutex;

use super::calls::Source;
use super::context::ProviderContext;
use super::errors::{failed, transport_error};
use super::inventory::{inventory, name_of};
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::Inventory;

/// A watch that is silent for longer than this is broken: the cluster ends it before.
const SILENCE: Duration = Duration::from_secs(super::calls::WATCH_DURATION_S + 30);

/// The objects of the provider, and the version up to which each source is known.
#[derive(Debug, Default)]
pub struct Objects {
    objects: BTreeMap<Source, BTreeMap<String, Value>>,
    versions: BTreeMap<Source, String>,
}

impl Objects {
    /// Replaces all objects of a source by those of a list.
    pub fn replace(&mut self, source: Source, items: Vec<Value>, version: &str) {
        self.versions.insert(source.clone(), version.to_owned());
        self.objects.insert(source, items.into_iter().map(|item| (key_of(&item), reduced(item))).collect());
    }

    /// The version from which a watch continues; `None` if the objects have to be listed.
    pub fn version(&self, source: &Source) -> Option<&str> {
        self.versions.get(source).map(String::as_str)
    }

    /// Forgets the objects of a source that is no longer known.
    pub fn forget(&mut self, source: &Source) {
        self.objects.remove(source);
        self.versions.remove(source);
    }

    /// The next watch begins with a list.
    pub fn forget_versions(&mut self) {
        self.versions.clear();
    }

    /// Applies an event of a watch; returns whether an object has changed.
    fn apply(&mut self, source: &Source, mut event: Value) -> Result<bool, CloudError> {
        let object = event["object"].take();
        let event_type = event["type"].as_str().unwrap_or_default();
        if event_type == "ERROR" {
            // The version is too old, or the cluster does not say what it has missed.
            self.forget_versions();
            let text = object["message"].as_str().unwrap_or("no reason");
            return Err(failed(format!("the watch ended with an error: {text}")));
        }
        if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
            self.versions.insert(source.clone(), version.to_owned());
        }
        let objects = self.objects.entry(source.clone()).or_default();
        match event_type {
            "ADDED" | "MODIFIED" => drop(objects.insert(key_of(&object), reduced(object))),
            "DELETED" => drop(objects.remove(&key_of(&object))),
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub fn inventory(&self, context: &ProviderContext) -> Inventory {
        let lists = self.objects.iter();
        let objects = lists.flat_map(|(source, objects)| objects.values().map(move |object| (source, object)));
        inventory(context, objects)
    }
}

fn key_of(object: &Value) -> String {
    format!("{}/{}", object["metadata"]["namespace"].as_str().unwrap_or_default(), name_of(object))
}

/// The object without the history of its fields, which is often the largest part.
fn reduced(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

type Events = BoxStream<'static, Result<(Source, Value), CloudError>>;

/// The open streams.
#[derive(Default)]
pub struct Watches(Mutex<SelectAll<Events>>);

impl Watches {
    /// Follows the response to a watch on all objects of a source. The first one replaces the streams of an earlier
    /// watch.
    pub async fn follow(&self, source: Source, is_first: bool, body: Body) {
        let mut streams = self.0.lock().await;
        if is_first {
            streams.clear();
        }
        let ended = stream::once(async { Err(failed("the cluster has ended the watch".to_owned())) });
        let events = lines(body).map(move |line| {
            let line = line?;
            let event = serde_json::from_slice(&line);
            event
                .map(|event| (source.clone(), event))
                .map_err(|error| failed(format!("unreadable event of a watch: {error}")))
        });
        streams.push(events.chain(ended).boxed());
    }

    /// Waits for the next change, and applies all events that are there already.
    pub async fn next(&self, context: &ProviderContext) -> Result<Arc<Inventory>, CloudError> {
        let mut streams = self.0.lock().await;
        let result = next_change(&mut streams, context).await;
        if result.is_err() {
            streams.clear();
        }
        result
    }
}

async fn next_change(streams: &mut SelectAll<Events>, context: &ProviderContext) -> Result<Arc<Inventory>, CloudError> {
    loop {
        let event = tokio::time::timeout(SILENCE, streams.next()).await;
        let event = event.map_err(|_| failed(format!("no event of the watch in {} s", SILENCE.as_secs())))?;
        let Some(event) = event else { return Err(failed("no watch is open".to_owned())) };
        let mut next = Some(event);
        let mut has_changed = false;
        while let Some(event) = next {
            let (source, event) = event?;
            has_changed |= context.objects().apply(&source, event)?;
            next = streams.next().now_or_never().flatten();
        }
        if has_changed {
            let objects = context.objects();
            return Ok(Arc::new(objects.inventory(context)));
        }
    }
}

/// The lines of a body, which arrive in pieces of any size.
pub fn lines(body: Body) -> impl Stream<Item = Result<Bytes, CloudError>> + Send {
    let pieces = http_body_util::BodyDataStream::new(body);
    let state = (pieces, BytesMut::new());
    stream::try_unfold(state, |(mut pieces, mut buffer)| async move {
        loop {
            if let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(end + 1).freeze();
                return Ok(Some((line, (pieces, buffer))));
            }
            match pieces.next().await {
                Some(piece) => buffer.extend_from_slice(&piece.map_err(|error| transport_error(&error))?),
                // A last line without its end was cut off.
                None => return Ok(None),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(kind: &str, name: &str, version: &str) -> Value {
        json!({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version, "managedFields": [1]}}})
    }

    #[test]
    fn events_change_the_objects_and_the_version() {
        let mut objects = Objects::default();
        objects.replace(Source::Namespaces, vec![json!({"metadata": {"name": "a"}})], "5");
        assert!(objects.apply(&Source::Namespaces, event("ADDED", "b", "6")).unwrap());
        assert!(!objects.apply(&Source::Namespaces, event("BOOKMARK", "", "9")).unwrap());
        assert_eq!(objects.version(&Source::Namespaces), Some("9"));
        assert!(objects.apply(&Source::Namespaces, event("DELETED", "a", "10")).unwrap());
        let names: Vec<&str> = objects.objects[&Source::Namespaces].values().map(name_of).collect();
        assert_eq!(names, ["b"]);
        assert!(objects.objects[&Source::Namespaces]["/b"]["metadata"].get("managedFields").is_none());
    }

    #[test]
    fn an_error_of_a_watch_leads_to_a_list() {
        let mut objects = Objects::default();
        objects.replace(Source::Pods, Vec::new(), "5");
        let gone = json!({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}});
        let error = objects.apply(&Source::Pods, gone).unwrap_err();
        assert!(error.to_string().contains("too old") && objects.version(&Source::Pods).is_none(), "{error}");
    }

    #[tokio::test]
    async fn lines_are_joined_from_pieces_and_a_cut_one_is_dropped() {
        let found: Vec<Bytes> = lines(Body::from(b"one\ntwo\nthr".to_vec())).map(Result::unwrap).collect().await;
        assert_eq!(found, [Bytes::from_static(b"one\n"), Bytes::from_static(b"two\n")]);
    }
}
