//! What goes wrong, as data: drawn from a seed, thinned out by whoever looks for the least that is needed.

use std::cell::Cell;
use std::num::ParseIntError;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use nodepool::actors::runtime::clock;
use nodepool_model::records::time::Timestamp;
use nodepool_zk::memory::{Fault as Loss, MemoryZooKeeper};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::book::RunHistory;
use super::builders::Luck;
use super::cloud::{Clouds, Weather};
use super::configuration::{BUILDERS, Cast, IMAGES, LAUNCHERS, Lack, OLD, PROVIDERS, Sizes};
use super::process::{Configured, SESSION_TIMEOUT, Seat};
use super::zuul::Crowd;
use super::{HOUR, operator};

#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process is killed after so many more of its steps.
    Kill { process: usize, steps: u64 },
    /// Its session is ended by the server.
    Expire { process: usize },
    /// Its connection is cut for a while, longer or shorter than the session lasts.
    Cut { process: usize, seconds: f64 },
    /// So many of its requests, or of the answers to them, are lost.
    Lose { process: usize, requests: usize, answers: bool },
    /// A cloud has bad weather for a while.
    Storm { provider: &'static str, weather: Storm, seconds: f64 },
    /// Somebody else ends a server.
    Vanish { nth: usize },
    /// The wall clock of all jumps.
    Jump { seconds: f64 },
    /// All that it asks ZooKeeper, and all that it hears, is late by up to so much, for a while or until it loses its session.
    Slow { process: usize, most_ms: u64, seconds: f64 },
    /// Its server is behind the leader, and so is all that it reads and hears, for a while or until it loses its session.
    Behind { process: usize, most_ms: u64, seconds: f64 },
    /// Somebody deletes an idle node by hand.
    Delete { nth: usize },
    /// Somebody keeps an idle node by hand for a while.
    Hold { nth: usize, seconds: f64 },
    /// Somebody removes the record of an idle node by hand.
    Erase { nth: usize },
    /// Somebody lets an upload go by hand that is ready, whether there is another or not.
    Dismiss { nth: usize },
    /// Somebody wants an image built anew.
    Rebuild { image: &'static str },
    /// All builds of an image fail for a while.
    Doom { image: &'static str, seconds: f64 },
    /// A launcher gets another configuration. What it lacks it has again after a while.
    Reload { launcher: usize, sizes: Sizes, seconds: f64 },
}

/// Kinds of bad weather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storm {
    Hiccups,
    LostAnswers,
    Throttling,
    BadBoots,
    StickingDeletes,
    Lag,
    Slow,
    Doubled,
    Others,
}

impl Storm {
    const ALL: [Self; 9] = [
        Self::Hiccups,
        Self::LostAnswers,
        Self::Throttling,
        Self::BadBoots,
        Self::StickingDeletes,
        Self::Lag,
        Self::Slow,
        Self::Doubled,
        Self::Others,
    ];

    fn weather(self) -> Weather {
        let fair = Weather::default();
        match self {
            Self::Hiccups => Weather { refused: 0.4, ..fair },
            Self::LostAnswers => Weather { lost_answers: 0.4, ..fair },
            Self::Throttling => Weather { throttled: 0.5, ..fair },
            Self::BadBoots => Weather { failing_boots: 0.3, hanging_boots: 0.2, ..fair },
            Self::StickingDeletes => Weather { sticking_deletes: 0.5, ..fair },
            Self::Lag => Weather { lag_s: 20.0, ..fair },
            Self::Slow => Weather { slow_s: 25.0, ..fair },
            Self::Doubled => Weather { doubled: 0.3, ..fair },
            Self::Others => Weather { of_others: 7, ..fair },
        }
    }
}

/// Which faults of a schedule strike, by their numbers. All, where nothing is said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chosen(Option<Vec<usize>>);

impl Chosen {
    pub fn only(numbers: &[usize]) -> Self {
        Self(Some(numbers.to_vec()))
    }

    /// As it is said on a command line.
    pub fn text(&self) -> Option<String> {
        let numbers = self.0.as_ref()?;
        let texts: Vec<String> = numbers.iter().map(usize::to_string).collect();
        Some(if texts.is_empty() { NONE.to_owned() } else { texts.join(",") })
    }

    pub fn of(&self, schedule: Vec<(f64, Fault)>) -> Vec<(f64, Fault)> {
        let Some(numbers) = &self.0 else { return schedule };
        schedule.into_iter().enumerate().filter(|(at, _)| numbers.contains(at)).map(|(_, fault)| fault).collect()
    }
}

const NONE: &str = "none";

impl FromStr for Chosen {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let numbers = text.split(',').filter(|number| *number != NONE);
        Ok(Self(Some(numbers.map(str::parse).collect::<Result<_, _>>()?)))
    }
}

impl Fault {
    fn strikes_somebody(&self, cast: Cast) -> bool {
        match self {
            Self::Kill { process, .. }
            | Self::Expire { process }
            | Self::Cut { process, .. }
            | Self::Lose { process, .. }
            | Self::Behind { process, .. }
            | Self::Slow { process, .. } => match *process {
                OLD_SEAT => cast.old,
                process => process < LAUNCHERS.len() || cast.builders,
            },
            Self::Dismiss { .. } | Self::Rebuild { .. } | Self::Doom { .. } => cast.builders,
            Self::Storm { .. } | Self::Vanish { .. } | Self::Jump { .. } => true,
            Self::Delete { .. } | Self::Hold { .. } | Self::Erase { .. } | Self::Reload { .. } => true,
        }
    }
}

/// The faults of a seed: a dozen or more, in their order.
pub fn schedule(seed: u64) -> Vec<(f64, Fault)> {
    let rng = &mut StdRng::seed_from_u64(seed ^ 0xfa17);
    let (cast, number) = (Cast::of(seed), rng.gen_range(16..30));
    let fault = |rng: &mut StdRng| loop {
        let fault = draw(rng);
        if fault.strikes_somebody(cast) {
            break (rng.gen_range(60.0..HOUR - 120.0), fault);
        }
    };
    let mut faults: Vec<(f64, Fault)> = (0..number).map(|_| fault(rng)).collect();
    faults.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    faults
}

fn draw(rng: &mut StdRng) -> Fault {
    // Launchers more often than builders. Whoever polls is killed and slow: what it still writes after a session is for its own account.
    let process = [0, 0, 1, 1, 2, 3][rng.gen_range(0..6)];
    let anybody = if rng.gen_ratio(1, 8) { OLD_SEAT } else { process };
    match rng.gen_range(0..22) {
        0..3 => Fault::Kill { process, steps: rng.gen_range(0..60) },
        3 => Fault::Kill { process: OLD_SEAT, steps: rng.gen_range(0..60) },
        4 => Fault::Expire { process },
        5 => Fault::Cut { process, seconds: rng.gen_range(0.5..20.0) },
        6 => Fault::Lose { process, requests: rng.gen_range(1..6), answers: rng.r#gen() },
        7..9 => Fault::Storm {
            provider: PROVIDERS[rng.gen_range(0..PROVIDERS.len())],
            weather: Storm::ALL[rng.gen_range(0..Storm::ALL.len())],
            seconds: if rng.gen_ratio(1, 5) { rng.gen_range(400.0..2400.0) } else { rng.gen_range(30.0..400.0) },
        },
        9 => Fault::Vanish { nth: rng.gen_range(0..20) },
        10 if rng.gen_ratio(1, 3) => Fault::Jump { seconds: rng.gen_range(-HOUR..HOUR) },
        10 => Fault::Jump { seconds: rng.gen_range(-30.0..120.0) },
        11..13 => {
            let most_ms = [5, 20, 100, 400, 1500][rng.gen_range(0..5)];
            Fault::Slow { process: anybody, most_ms, seconds: rng.gen_range(60.0..900.0) }
        }
        13..15 => Fault::Delete { nth: rng.gen_range(0..20) },
        15 => Fault::Dismiss { nth: rng.gen_range(0..12) },
        16 => {
            let image = IMAGES[rng.gen_range(0..IMAGES.len())].0;
            let seconds = rng.gen_range(300.0..HOUR);
            if rng.r#gen() { Fault::Rebuild { image } } else { Fault::Doom { image, seconds } }
        }
        17 => Fault::Erase { nth: rng.gen_range(0..20) },
        19..21 => {
            let most_ms = [5, 50, 300, 1500][rng.gen_range(0..4)];
            Fault::Behind { process: anybody, most_ms, seconds: rng.gen_range(60.0..900.0) }
        }
        18 => Fault::Hold { nth: rng.gen_range(0..20), seconds: rng.gen_range(1.0..300.0) },
        _ => Fault::Reload {
            launcher: rng.gen_range(0..2),
            sizes: Sizes {
                max_servers: rng.gen_range(5..9),
                min_ready: rng.gen_range(0..3),
                lacks: [None, Some(Lack::Label), Some(Lack::Provider)][rng.gen_range(0..3)],
            },
            seconds: rng.gen_range(15.0..400.0),
        },
    }
}

/// Of the launcher of Nodepool 11; before it are those of launchers and builders, in the order of the configuration.
pub const OLD_SEAT: usize = LAUNCHERS.len() + BUILDERS.len();

/// On what faults strike.
pub struct Stage {
    pub zookeeper: MemoryZooKeeper,
    pub clouds: Clouds,
    pub seats: Vec<Seat>,
    pub launchers: Vec<Configured>,
    pub crowd: Crowd,
    pub luck: Luck,
    pub history: RunHistory,
    pub struck: Struck,
}

/// How many faults met somebody: one that is dead already is not killed, and of idle nodes there may be none. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Struck {
    all: Rc<Cell<usize>>,
    kills: Rc<Cell<usize>>,
}

impl Struck {
    pub fn all(&self) -> usize {
        self.all.get()
    }

    /// Of launchers and builders. That of Nodepool 11 is not counted.
    pub fn kills(&self) -> usize {
        self.kills.get()
    }

    fn note(&self, met: bool) {
        self.all.set(self.all.get() + usize::from(met));
    }

    /// What people do takes its time.
    fn note_later(&self, act: impl Future<Output = bool> + 'static) {
        let struck = self.clone();
        actix_rt::spawn(async move { struck.note(act.await) });
    }
}

impl Stage {
    /// False where whoever sat there is dead already.
    fn kill(&self, process: usize, steps: u64) -> bool {
        let seat = self.seats[process].clone();
        let (budget, zookeeper, struck) = (seat.budget(), self.zookeeper.clone(), self.struck.clone());
        if !seat.is_alive() {
            return false;
        }
        budget.limit_to(steps);
        actix_rt::spawn(async move {
            // Who makes fewer steps than that dies all the same.
            let _ = tokio::time::timeout(Duration::from_secs(60), budget.exhausted()).await;
            budget.limit_to(0);
            if process < OLD_SEAT && budget.count_death() {
                struck.kills.set(struck.kills.get() + 1);
            }
            // The session it has by then, which may not be that of now; nobody sits there anew so soon.
            let session = seat.session();
            tokio::time::sleep(SESSION_TIMEOUT).await;
            zookeeper.expire(session);
        });
        true
    }

    fn cut(&self, process: usize, duration: Duration) {
        let (zookeeper, seat) = (self.zookeeper.clone(), &self.seats[process]);
        let (session, budget) = (seat.session(), seat.budget());
        let number = budget.last_session();
        zookeeper.suspend(session);
        actix_rt::spawn(async move {
            tokio::time::sleep(duration.min(SESSION_TIMEOUT)).await;
            if duration > SESSION_TIMEOUT {
                budget.record_session_end(number);
                zookeeper.expire_unnoticed(session);
                tokio::time::sleep(duration - SESSION_TIMEOUT).await;
            }
            zookeeper.resume(session);
        });
    }

    fn reload(&self, launcher: usize, sizes: Sizes, duration: Duration) {
        let configured = self.launchers[launcher].clone();
        configured.set(sizes);
        actix_rt::spawn(async move {
            tokio::time::sleep(duration).await;
            configured.complete();
        });
    }

    /// What people do by hand. False where it is done by now, or never; otherwise it is counted when it is done.
    fn act(&self, fault: &Fault) -> bool {
        let (zookeeper, crowd, book) = (self.zookeeper.clone(), self.crowd.clone(), self.history.clone());
        match *fault {
            Fault::Delete { nth } => {
                self.seats[..LAUNCHERS.len()].iter().for_each(|launcher| slow_down(launcher, 300, 10.0));
                self.struck.note_later(operator::delete_idle(zookeeper, crowd, nth));
            }
            Fault::Hold { nth, seconds } => {
                self.struck.note_later(operator::hold(zookeeper, crowd, nth, Duration::from_secs_f64(seconds)));
            }
            Fault::Erase { nth } => self.struck.note_later(operator::erase(zookeeper, book, nth)),
            Fault::Dismiss { nth } => self.struck.note_later(operator::dismiss_upload(zookeeper, book, nth)),
            Fault::Rebuild { image } => {
                actix_rt::spawn(operator::request_build(zookeeper, image));
                return true;
            }
            _ => unreachable!("{fault:?} is nothing that people do"),
        }
        false
    }
}

pub fn strike(fault: &Fault, stage: &Stage) {
    let Stage { zookeeper, clouds, seats, .. } = stage;
    let met = match *fault {
        Fault::Kill { process, steps } => stage.kill(process, steps),
        Fault::Expire { process } => {
            zookeeper.expire(seats[process].session());
            seats[process].is_alive()
        }
        Fault::Cut { process, seconds } => {
            stage.cut(process, Duration::from_secs_f64(seconds));
            seats[process].is_alive()
        }
        Fault::Lose { process, requests, answers } => {
            let loss = if answers { Loss::AfterApplying } else { Loss::BeforeApplying };
            zookeeper.fail_next(seats[process].session(), requests, loss);
            seats[process].is_alive()
        }
        Fault::Storm { provider, weather, seconds } => {
            clouds.set_weather(provider, weather.weather(), Duration::from_secs_f64(seconds));
            true
        }
        Fault::Vanish { nth } => clouds.vanish(nth),
        Fault::Jump { seconds } => {
            clock::simulate(Timestamp(clock::now().0 + seconds));
            true
        }
        Fault::Behind { process, most_ms, seconds } => {
            let lag = seats[process].set_lag(Duration::from_millis(most_ms), zookeeper);
            actix_rt::spawn(async move {
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                lag.end();
            });
            seats[process].is_alive()
        }
        Fault::Slow { process, most_ms, seconds } => {
            slow_down(&seats[process], most_ms, seconds);
            seats[process].is_alive()
        }
        Fault::Delete { .. }
        | Fault::Hold { .. }
        | Fault::Erase { .. }
        | Fault::Dismiss { .. }
        | Fault::Rebuild { .. } => stage.act(fault),
        Fault::Doom { image, seconds } => {
            stage.luck.doom(image, Duration::from_secs_f64(seconds));
            true
        }
        Fault::Reload { launcher, sizes, seconds } => {
            stage.reload(launcher, sizes, Duration::from_secs_f64(seconds));
            true
        }
    };
    stage.struck.note(met);
}

fn slow_down(process: &Seat, most_ms: u64, seconds: f64) {
    let link = process.link();
    let max_delay = Duration::from_millis(most_ms);
    link.set_max_delay(max_delay);
    actix_rt::spawn(async move {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        // Unless it is slow in another way by now.
        link.clear_delay(max_delay);
    });
}

/// The end of all faults.
pub fn heal(stage: &Stage) {
    let Stage { zookeeper, clouds, seats, launchers, luck, .. } = stage;
    luck.calm();
    clouds.calm();
    for seat in seats {
        zookeeper.resume(seat.session());
        seat.link().set_max_delay(Duration::ZERO);
        seat.set_lag(Duration::ZERO, zookeeper);
    }
    launchers.iter().for_each(Configured::complete);
    drop(actix_rt::spawn(operator::end_forgotten(zookeeper.clone(), OLD[0])));
}
