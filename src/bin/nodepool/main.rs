//! The command line `nodepool`: inspects and changes Nodepool's state in ZooKeeper, and reports the result by its exit
//! status.

mod args;
mod commands;
mod connect;
mod interrupts;
mod man_pages;
mod output;
mod session_watch;
#[cfg(test)]
mod testing;

use std::io::{IsTerminal, Write};
use std::process::exit;
use std::sync::Arc;

use anyhow::Context;
use nodepool::actors::process::flags::tilde;
use nodepool::actors::process::logger_names::NODEPOOL;
use nodepool_model::records::image_upload::UploadKey;
use nodepool_zk::Zk;
use python_logging::{LogPlan, Verbosity};
use serde_json::json;

use args::{Command, Global};
use commands::images::{self, alien, follow};
use commands::request::{self, HoldPolicy};
use commands::{admin, backing, clouds, dump, generate, nodes, standalone, validate, watch, why};
use interrupts::Interrupts;
use output::Output;

/// Allocator of the launcher, which `standalone` runs (doc/decisions/0016-allocator.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let status = match args::parse(std::env::args_os()) {
        Ok((global, command)) => start(global, command),
        Err(error) => {
            // A reader that closed the output needs no error.
            let _ = std::io::stdout().write_all(error.stdout.as_bytes());
            let _ = std::io::stderr().write_all(error.stderr.as_bytes());
            error.status
        }
    };
    // A thread may still wait for a line of input, which must not block the exit.
    exit(i32::from(status));
}

fn start(global: Global, command: Command) -> u8 {
    let command = match command {
        Command::Standalone(arguments) => return standalone::run(global, arguments),
        other => other,
    };
    let stdout = std::io::stdout();
    // Standard output is not locked, because panics and the log write to it, too.
    let mut out = std::io::BufWriter::with_capacity(1 << 16, stdout);
    let mut diagnostics = std::io::stderr();
    let mut output = Output::new(global.output, &mut out, &mut diagnostics);
    let result = run_command(global, command, &mut output).and_then(|status| {
        output.flush()?;
        Ok(status)
    });
    match result {
        Ok(status) => status,
        Err(error) => fail(&error, &mut output),
    }
}

/// Whether the reader closed the pipe.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Reports an error; the message is the last line on stderr.
fn fail(error: &anyhow::Error, output: &mut Output<'_>) -> u8 {
    // The reader closed the output, so it needs no error.
    if is_broken_pipe(error) {
        return 1;
    }
    let message = format!("{error:#}");
    let shown = output.failure(json!({"outcome": "failed", "message": message})).and_then(|()| output.flush());
    // If writing the result failed, the message is still written to stderr. If that fails, too, nothing is left to
    // report to.
    let _ = output.note(format_args!("nodepool: error: {message}"));
    let _ = shown;
    1
}

fn run_command(global: Global, command: Command, output: &mut Output<'_>) -> anyhow::Result<u8> {
    if let Command::Generate(generate) = &command {
        return generate::run(generate, output).map(|()| 0);
    }
    let plan = log_plan(&global)?;
    for notice in &plan.notices {
        output.note(notice)?;
    }
    // Log lines on the terminal would corrupt the view.
    let would_corrupt_view =
        matches!(command, Command::Watch) && global.logconfig.is_none() && watch::is_interactive(global.output);
    if !would_corrupt_view {
        plan.install()?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = runtime.block_on(dispatch(global, command, output));
    runtime.shutdown_background();
    status
}

/// `--debug` overrides a logging file, as in Nodepool 11.
fn log_plan(global: &Global) -> anyhow::Result<LogPlan> {
    match &global.logconfig {
        _ if global.debug => Ok(LogPlan::to_stderr(Verbosity::Debug, &NODEPOOL)),
        Some(path) => Ok(LogPlan::from_file(&tilde::expand_tilde(path), &NODEPOOL)?),
        None => Ok(LogPlan::to_stderr(Verbosity::Normal, &NODEPOOL)),
    }
}

async fn dispatch(global: Global, command: Command, output: &mut Output<'_>) -> anyhow::Result<u8> {
    if let Command::ConfigValidate = command {
        let path = connect::config_path(&global, output)?;
        validate::config_validate(&path, output).await?;
        return Ok(0);
    }
    let config = connect::config(&global, output).await?;
    if let Command::Dump { profile } = command {
        return dump::dump(&config, output, profile).await.map(|()| 0);
    }
    if let Command::Watch = command {
        // `watch` opens its own sessions, one after another.
        return watch::watch(&config, output, global.timeout).await;
    }
    let session = connect::session(&config, global.timeout).await?;
    let zk: Zk = session.clone();
    let status = with_session(&zk, &config, command, output).await;
    // Closing the session releases locks and ephemeral znodes at once; otherwise they would last until the session
    // times out.
    session.close().await;
    status
}

async fn with_session(
    zk: &Zk,
    config: &Arc<nodepool_model::config::Config>,
    command: Command,
    output: &mut Output<'_>,
) -> anyhow::Result<u8> {
    match command {
        Command::List { detail } => nodes::list(zk.as_ref(), output, nodes::Detail::of_flag(detail)).await?,
        Command::Info { provider } => admin::info(zk.as_ref(), config, output, &provider.into()).await?,
        Command::AlienList { provider } => {
            let provider = provider.map(Into::into);
            clouds::alien_list(zk.as_ref(), config, output, provider.as_ref()).await?;
        }
        Command::AlienImageList { provider } => {
            let provider = provider.map(Into::into);
            alien::list(zk, config, output, provider.as_ref()).await?;
        }
        Command::RequestList => admin::request_list(zk.as_ref(), output).await?,
        Command::Delete { now: false, id } => nodes::delete(zk, output, &id.into()).await?,
        Command::Delete { now: true, id } => nodes::delete_now(zk, config, output, &id.into()).await?,
        Command::Hold { id } => nodes::hold(zk, output, &id.into()).await?,
        Command::Retire { node } => backing::retire(zk.as_ref(), output, &node.into()).await?,
        Command::Erase { force, provider } => {
            let confirmation = if force { admin::Confirmation::Forced } else { admin::Confirmation::Prompt };
            let mut answers = std::io::stdin().lock();
            admin::erase(zk.as_ref(), output, &mut answers, &provider.into(), confirmation).await?;
        }
        Command::DibImageList => images::dib_image_list(zk, output).await?,
        Command::ImageList => images::image_list(zk, output).await?,
        Command::ImageStatus => images::image_status(zk, output).await?,
        Command::ImageBuild { wait: false, image, .. } => {
            images::image_build(zk, config, output, &image.into()).await?
        }
        Command::ImageBuild { wait: true, uploads, image } => {
            let until = if uploads { follow::FollowUntil::Uploaded } else { follow::FollowUntil::Built };
            follow::image_build_and_wait(zk, config, output, &image.into(), until).await?;
        }
        Command::BuildLog { follow, image } => {
            let follow = if follow { follow::FollowMode::UntilBuildEnds } else { follow::FollowMode::CurrentContent };
            follow::build_log(zk, config, output, &image.into(), follow).await?;
        }
        Command::ImagePause { image } => images::image_pause(zk, output, &image.into()).await?,
        Command::ImageUnpause { image } => images::image_unpause(zk, output, &image.into()).await?,
        Command::DibImageDelete { id } => images::dib_image_delete(zk, output, &id).await?,
        Command::ImageDelete { provider, image, build_id, upload_id } => {
            let (build, upload) = (build_id.into(), upload_id.into());
            let key = UploadKey { provider: provider.into(), image: image.into(), build, upload };
            images::image_delete(zk, output, &key).await?;
        }
        Command::ExportImageData { path } => images::export_image_data(zk, output, &path).await?,
        Command::ImportImageData { path } => images::import_image_data(zk, output, &path).await?,
        Command::Why { request } => why::why(zk, output, &request.into()).await?,
        Command::Request(arguments) => {
            let mut interrupts = Interrupts::listen().context("cannot listen to signals")?;
            let hold_policy = match std::io::stdin().is_terminal() {
                true => HoldPolicy::Until(Box::pin(line_of_input())),
                false => HoldPolicy::Never,
            };
            let session_timeout = config.zookeeper.session_timeout.to_duration();
            return request::request(zk, output, &arguments, &mut interrupts, hold_policy, session_timeout).await;
        }
        // Handled before the session was opened.
        Command::ConfigValidate
        | Command::Standalone(_)
        | Command::Dump { .. }
        | Command::Watch
        | Command::Generate(_) => {}
    }
    Ok(0)
}

/// Resolves with the next line or the end of standard input. The thread remains blocked if neither occurs.
async fn line_of_input() {
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    // An input that cannot be read counts as ended.
    let _ = read.await;
}
