//! Views for operators: tables, lists, statuses and the event history.

pub mod event_history;
pub mod image_status;
pub mod list;
pub mod status;
pub mod table;
