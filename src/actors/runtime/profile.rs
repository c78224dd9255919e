//! A profile of the actors, on request: processor time by actor and message type, slow handlers, mailbox waits, stacks.
//! While no profile is recorded, a handler only reads one flag.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::dump::{self, DumpRegistry};

/// A profile that is not collected ends after this time.
pub const MAX_DURATION: Duration = Duration::from_secs(600);
/// Handlers that took longer, in wall time, are listed individually.
const SLOW_THRESHOLD: Duration = Duration::from_millis(10);
const MAX_SLOW_HANDLERS: usize = 50;
/// Interval of the mailbox probe.
const MAILBOX_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Stack samples per second and thread; a prime, so that they do not align with timers.
const STACKS_PER_SECOND: i32 = 97;
/// Maximum number of functions in the results.
const MAX_FUNCTIONS: usize = 40;

static IS_ON: AtomicBool = AtomicBool::new(false);
/// Whether a profile exists, including one whose results are still being compiled.
static IN_USE: AtomicBool = AtomicBool::new(false);
static DATA: Mutex<Option<ProfileData>> = Mutex::new(None);

struct ProfileData {
    began: Instant,
    handlers: BTreeMap<(&'static str, &'static str), HandlerTime>,
    slow: Vec<SlowHandler>,
    mailboxes: BTreeMap<String, MailboxWait>,
}

#[derive(Default)]
struct HandlerTime {
    count: u64,
    cpu: Duration,
    longest: Duration,
}

struct SlowHandler {
    actor: &'static str,
    message: &'static str,
    took: Duration,
    after: Duration,
}

#[derive(Default)]
struct MailboxWait {
    count: u64,
    sum: Duration,
    longest: Duration,
    unanswered: u64,
}

/// Measures the time until it is dropped; for the first line of a handler.
#[must_use = "a timer that is dropped at once measures nothing"]
pub struct HandlerTimer {
    actor: &'static str,
    message: &'static str,
    began: Instant,
    cpu: Duration,
}

/// Starts the timer of a handler; `None` while no profile is recorded.
pub fn time_handler<A>(message: &'static str) -> Option<HandlerTimer> {
    if !IS_ON.load(Ordering::Relaxed) {
        return None;
    }
    Some(HandlerTimer {
        actor: short_name(std::any::type_name::<A>()),
        message,
        began: Instant::now(),
        cpu: thread_time(),
    })
}

/// Name of a type without modules and parameters.
fn short_name(full: &'static str) -> &'static str {
    let plain = full.split('<').next().unwrap_or(full);
    plain.rsplit("::").next().unwrap_or(plain)
}

/// Processor time of the calling thread.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

impl Drop for HandlerTimer {
    fn drop(&mut self) {
        let (took, cpu) = (self.began.elapsed(), thread_time().saturating_sub(self.cpu));
        let mut data = lock();
        let Some(data) = data.as_mut() else { return };
        let time = data.handlers.entry((self.actor, self.message)).or_default();
        time.count += 1;
        time.cpu += cpu;
        time.longest = time.longest.max(took);
        if took >= SLOW_THRESHOLD && data.slow.len() < MAX_SLOW_HANDLERS {
            let after = data.began.elapsed();
            data.slow.push(SlowHandler { actor: self.actor, message: self.message, took, after });
        }
    }
}

fn lock() -> MutexGuard<'static, Option<ProfileData>> {
    DATA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A profile that is being recorded. At most one exists at a time.
pub struct Profile {
    stacks: Option<pprof::ProfilerGuard<'static>>,
    probing: actix_rt::task::JoinHandle<()>,
}

impl Profile {
    /// Starts a profile. Must be called on a thread that nothing else can block. `None` if a profile exists already.
    pub fn start(registry: DumpRegistry) -> Option<Self> {
        let (handlers, slow, mailboxes) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        if IN_USE.swap(true, Ordering::Relaxed) {
            return None;
        }
        *lock() = Some(ProfileData { began: Instant::now(), handlers, slow, mailboxes });
        IS_ON.store(true, Ordering::Relaxed);
        // Unwinding from a signal handler inside these libraries may wait for a lock that the interrupted code holds.
        let blocklist = ["libc", "libgcc", "pthread", "vdso"];
        let builder = pprof::ProfilerGuardBuilder::default().frequency(STACKS_PER_SECOND).blocklist(&blocklist);
        let stacks = builder.build().ok();
        let probing = actix_rt::spawn(async move {
            loop {
                probe_mailboxes(&registry).await;
                tokio::time::sleep(MAILBOX_PROBE_INTERVAL).await;
            }
        });
        Some(Self { stacks, probing })
    }

    /// The results, line by line.
    pub async fn finish(mut self) -> Vec<String> {
        self.probing.abort();
        IS_ON.store(false, Ordering::Relaxed);
        let Some(data) = lock().take() else { return Vec::new() };
        let mut lines = data.lines();
        // Resolving function names takes time.
        let stacks = self.stacks.take();
        let stacks = tokio::task::spawn_blocking(move || stacks.map(|stacks| function_lines(&stacks)));
        lines.extend(stacks.await.ok().flatten().unwrap_or_default());
        lines
    }
}

/// A dropped profile stops all of its measurements.
impl Drop for Profile {
    fn drop(&mut self) {
        self.probing.abort();
        IS_ON.store(false, Ordering::Relaxed);
        *lock() = None;
        IN_USE.store(false, Ordering::Relaxed);
    }
}

/// Measures the time until each actor answers a cheap message.
async fn probe_mailboxes(registry: &DumpRegistry) {
    let answers = registry.time_all(super::messages::Dump, dump::DUMP_TIMEOUT).await;
    if let Some(data) = lock().as_mut() {
        for (actor_id, took) in answers {
            let wait = data.mailboxes.entry(format!("{} {}", actor_id.actor, actor_id.name)).or_default();
            match took {
                Some(took) => {
                    wait.count += 1;
                    wait.sum += took;
                    wait.longest = wait.longest.max(took);
                }
                None => wait.unanswered += 1,
            }
        }
    }
}

impl ProfileData {
    fn lines(self) -> Vec<String> {
        let seconds = self.began.elapsed().as_secs_f64();
        let mut lines = vec![format!("Profile of {seconds:.1} s"), "Handlers by processor time:".to_owned()];
        let mut handlers: Vec<_> = self.handlers.into_iter().collect();
        handlers.sort_by_key(|(_, time)| std::cmp::Reverse(time.cpu));
        lines.extend(handlers.into_iter().map(|((actor, message), time)| {
            let (cpu, longest) = (time.cpu.as_secs_f64() * 1000.0, time.longest.as_secs_f64() * 1000.0);
            let HandlerTime { count, .. } = time;
            format!("  {actor} {message}: {cpu:.3} ms in {count} calls, the longest took {longest:.3} ms")
        }));
        lines.push(format!("Handlers that took more than {} ms:", SLOW_THRESHOLD.as_millis()));
        lines.extend(self.slow.into_iter().map(|slow| {
            let (took, after) = (slow.took.as_secs_f64() * 1000.0, slow.after.as_secs_f64());
            format!("  {} {}: {took:.3} ms, {after:.1} s after the start", slow.actor, slow.message)
        }));
        lines.push("Mailboxes, time until a message was answered:".to_owned());
        lines.extend(self.mailboxes.into_iter().map(|(name, wait)| {
            let mean = wait.sum.as_secs_f64() * 1000.0 / wait.count.max(1) as f64;
            let mut line = format!(
                "  {name}: mean {mean:.3} ms, longest {:.3} ms of {}",
                wait.longest.as_secs_f64() * 1000.0,
                wait.count
            );
            if wait.unanswered > 0 {
                let _ = write!(line, ", {} without an answer", wait.unanswered);
            }
            line
        }));
        lines
    }
}

/// The most frequent innermost functions of the sampled stacks.
fn function_lines(stacks: &pprof::ProfilerGuard<'_>) -> Vec<String> {
    let Ok(report) = stacks.report().build() else { return Vec::new() };
    let (mut found, mut total): (BTreeMap<String, isize>, isize) = (BTreeMap::new(), 0);
    for (stack, count) in &report.data {
        let innermost = stack.frames.first().and_then(|symbols| symbols.first());
        *found.entry(innermost.map_or_else(|| "unknown".to_owned(), |symbol| symbol.name())).or_default() += count;
        total += count;
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut lines = vec![format!("Functions, of {total} samples at {STACKS_PER_SECOND} a second of processor time:")];
    lines.extend(found.into_iter().take(MAX_FUNCTIONS).map(|(name, count)| format!("  {count} {name}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Worker;

    #[tokio::test]
    async fn handlers_are_measured_while_profiling() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                assert!(time_handler::<Worker>("Before").is_none());
                let profile = Profile::start(DumpRegistry::default()).unwrap();
                assert!(Profile::start(DumpRegistry::default()).is_none());
                {
                    let _measured = time_handler::<Worker>("Wake");
                    std::hint::black_box((0..100_000).fold(0_u64, |sum, number| sum ^ number));
                }
                let lines = profile.finish().await.join("\n");
                assert!(lines.contains("Worker Wake: ") && !lines.contains("Before"), "{lines}");
                assert!(lines.contains("Functions, of "), "{lines}");
                assert!(time_handler::<Worker>("After").is_none());
            })
            .await;
    }

    #[test]
    fn short_name_drops_modules_and_parameters() {
        assert_eq!(short_name("a::b::TaskManager<c::d::Driver<e::F>>"), "TaskManager");
        assert_eq!(short_name("PoolWorker"), "PoolWorker");
    }
}
