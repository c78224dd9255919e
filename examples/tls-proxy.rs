//! A proxy with the TLS of a cloud's hosts, for programs that have their addresses built in.
//!
//! usage: `tls-proxy HOST=http://127.0.0.1:PORT …`

use testkit::clouds::tls_proxy::TlsProxy;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let targets: Option<Vec<(&str, &str)>> = arguments.iter().map(|argument| argument.split_once('=')).collect();
    let Some(targets) = targets.filter(|targets| !targets.is_empty()) else {
        eprintln!("usage: tls-proxy HOST=http://127.0.0.1:PORT …");
        std::process::exit(2);
    };
    let proxy = TlsProxy::start(&targets).await;
    println!("authority {}\nlistening on {}", proxy.authority().display(), proxy.url());
    std::future::pending::<()>().await;
}
