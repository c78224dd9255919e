//! StatsWorker: reports gauges of its own configuration and, if elected, of the records in ZooKeeper.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, WrapFuture};
use serde_json::json;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::actors::process::context::ProcessContext;
use crate::actors::runtime::messages::{Dump, Shutdown};
use crate::actors::runtime::panics::{PanicGuard, PanicWatch};
use crate::actors::runtime::profile;
use crate::actors::runtime::registry::Registration;
use nodepool_model::config::Config;
use nodepool_model::metrics::statsd_metrics;
use nodepool_zk::locks::election::{self, Leadership};
use nodepool_zk::mirror::mirror::Subscription;
use nodepool_zk::{Zk, paths};

/// Minimum interval between two reports of changes.
const CHANGES_INTERVAL: Duration = Duration::from_secs(1);
/// Unchanged gauges are reported again at this interval, because a datagram may have been lost.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);

pub struct StatsWorker {
    zk: Zk,
    context: Arc<ProcessContext>,
    snapshots: Subscription,
    config: Arc<Config>,
    leadership: Option<Leadership>,
    /// Time of the last report of the global gauges; `None` before the first one.
    last_reported: Option<Instant>,
    /// A report is in progress; the next one starts after its end.
    is_reporting: bool,
    _guard: PanicGuard,
    registration: Option<Registration>,
}

impl StatsWorker {
    /// Starts the worker; `None` if no statsd server is configured, because no election is needed then.
    pub fn start_if_configured(
        zk: Zk,
        context: Arc<ProcessContext>,
        snapshots: Subscription,
        config: Arc<Config>,
        panics: &PanicWatch,
    ) -> Option<Addr<StatsWorker>> {
        if !context.samples.has_server() {
            return None;
        }
        let guard = panics.guard("StatsWorker");
        let worker = StatsWorker {
            zk,
            context,
            snapshots,
            config,
            leadership: None,
            last_reported: None,
            is_reporting: false,
            _guard: guard,
            registration: None,
        };
        Some(worker.start())
    }

    fn campaign(&mut self, ctx: &mut Context<Self>) {
        let zk = self.zk.clone();
        let candidate = election::candidate(&self.context.identity.hostname, std::process::id());
        let elected = async move { election::lead(&zk, paths::ELECTION_STATS, &candidate).await };
        ctx.spawn(elected.into_actor(self).map(|elected, worker, ctx| match elected {
            Ok(leadership) => {
                info!("elected to report statistics");
                worker.leadership = Some(leadership);
                worker.last_reported = None;
                worker.report_global(ctx);
            }
            Err(error) => {
                warn!(%error, "cannot join the election; retrying");
                ctx.run_later(REFRESH_INTERVAL, Self::campaign);
            }
        }));
    }

    /// Computes the gauges on a blocking thread, because counting many nodes takes a while.
    fn report_global(&mut self, ctx: &mut Context<Self>) {
        let leads = self.leadership.as_ref().is_some_and(Leadership::is_certain);
        if !leads || self.is_reporting {
            return;
        }
        let due = self.last_reported.is_none_or(|at| at.elapsed() >= REFRESH_INTERVAL);
        let changed = self.snapshots.has_changed();
        if !due && !changed {
            return;
        }
        let snapshot = self.snapshots.latest_and_mark_seen();
        let samples = self.context.samples.clone();
        self.is_reporting = true;
        let report = async move {
            match tokio::task::spawn_blocking(move || statsd_metrics::global_gauges(&snapshot)).await {
                Ok(gauges) => samples.send_all(gauges).await,
                Err(error) => warn!(%error, "cannot compute statistics"),
            }
        };
        ctx.spawn(report.into_actor(self).map(|(), worker, _| {
            worker.is_reporting = false;
            worker.last_reported = Some(Instant::now());
        }));
    }

    /// Reports the limits as often as the pools of Nodepool 11 do, which is when they process their requests.
    fn report_limits(&mut self, _: &mut Context<Self>) {
        statsd_metrics::limit_gauges(&self.config)
            .into_iter()
            .for_each(|sample| self.context.samples.send_to_statsd(sample));
    }

    fn report_client(&mut self, _: &mut Context<Self>) {
        let gauges = statsd_metrics::client_gauges(&self.context.identity.hostname);
        gauges.into_iter().for_each(|sample| self.context.samples.send_to_statsd(sample));
    }
}

impl Actor for StatsWorker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.registration = Some(self.context.registry.register("StatsWorker", "", ctx.address()));
        self.campaign(ctx);
        self.report_limits(ctx);
        self.report_client(ctx);
        ctx.run_interval(CHANGES_INTERVAL, Self::report_global);
        ctx.run_interval(CHANGES_INTERVAL, Self::report_limits);
        ctx.run_interval(REFRESH_INTERVAL, Self::report_client);
    }
}

/// The configuration changed.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ReconfigureStatsWorker(pub Arc<Config>);

impl Handler<ReconfigureStatsWorker> for StatsWorker {
    type Result = ();

    fn handle(&mut self, message: ReconfigureStatsWorker, ctx: &mut Self::Context) {
        let _measured = profile::time_handler::<Self>("Reconfigure");
        self.config = message.0;
        self.report_limits(ctx);
    }
}

impl Handler<Dump> for StatsWorker {
    type Result = Option<serde_json::Value>;

    fn handle(&mut self, _: Dump, _: &mut Self::Context) -> Self::Result {
        let _measured = profile::time_handler::<Self>("Dump");
        Some(json!({
            "elected": self.leadership.is_some(),
            "reporting": self.is_reporting,
            "reported_s_ago": self.last_reported.map(|at| at.elapsed().as_secs_f64()),
            "samples_dropped": self.context.samples.dropped(),
        }))
    }
}

impl Handler<Shutdown> for StatsWorker {
    type Result = actix::ResponseFuture<()>;

    fn handle(&mut self, _: Shutdown, ctx: &mut Self::Context) -> Self::Result {
        let _measured = profile::time_handler::<Self>("Shutdown");
        ctx.stop();
        let leadership = self.leadership.take();
        Box::pin(async move {
            if let Some(leadership) = leadership
                && let Err(error) = leadership.resign().await
            {
                warn!(%error, "cannot resign; the leadership ends with the session");
            }
        })
    }
}
