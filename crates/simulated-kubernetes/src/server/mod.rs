//! The HTTP side: receives calls and sends responses and watches.

pub mod call;
pub mod http;
pub mod kubeconfig;
pub mod response;
pub mod tls;
pub mod watch_stream;
