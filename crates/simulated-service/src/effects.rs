//! Effects of faults on a call: an error or the end of the connection instead of its execution, or a changed response.

use std::time::Duration;

use bytes::Bytes;

/// The effect of one fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// An error; the call has no effect.
    Error(ErrorWords),
    /// 502 with an HTML page, as a proxy responds; the call has no effect.
    Html,
    /// 200 with a text that is not JSON; the call is executed.
    Text,
    /// The connection is closed without a response; the call has no effect.
    Closed,
    /// No response for `hang_s`, then the connection is closed; the call has no effect.
    Hang,
    /// The call is executed after so many more seconds.
    Delay(f64),
    /// The call is executed, and the connection is closed without a response.
    LostAnswer,
    /// The call is executed, and the second half of the response is missing.
    Truncated,
}

/// An error by its status, its code or both, and what else the response may say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorWords {
    pub status: Option<u16>,
    pub code: Option<String>,
    pub message: Option<String>,
    /// The header `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
}

impl Effect {
    /// The effect of this name, or the error of a status such as 503, of a code, or of both, as in `503:CODE`.
    pub fn parse(text: &str, is_code: impl Fn(&str) -> bool) -> Result<Self, String> {
        let unknown = || format!("unknown fault {text}: expected 400 to 599, a code, 503:CODE, or a name");
        let status = |text: &str| text.parse().ok().filter(|status| (400..=599).contains(status)).ok_or_else(unknown);
        let error = |status, code: Option<&str>| {
            Self::Error(ErrorWords { status, code: code.map(str::to_owned), ..ErrorWords::default() })
        };
        Ok(match text {
            "html" => Self::Html,
            "text" => Self::Text,
            "closed" => Self::Closed,
            "hang" => Self::Hang,
            "delay" => Self::Delay(1.0),
            "lost-answer" => Self::LostAnswer,
            "truncated" => Self::Truncated,
            code if is_code(code) => error(None, Some(code)),
            other => match other.split_once(':') {
                Some((number, code)) => error(Some(status(number)?), Some(code)),
                None => error(Some(status(other)?), None),
            },
        })
    }

    /// Sets the seconds of a delay, `s=`. `false` means that the key is another one.
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        let (Self::Delay(delay), "s") = (self, key) else { return Ok(false) };
        let time = value.parse().ok().filter(|time| (0.0..1e9).contains(time));
        *delay = time.ok_or_else(|| format!("s={value}: expected seconds"))?;
        Ok(true)
    }
}

/// The end of a call that is not executed.
#[derive(Debug, PartialEq)]
pub enum Interruption {
    Error(ErrorWords),
    Html,
    /// The connection is closed after this time.
    Close(Duration),
}

/// A call to be executed, and the changes of its response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// Time at which it was received.
    pub at: Duration,
    pub is_lost: bool,
    pub is_truncated: bool,
    /// The body is replaced by a text.
    pub is_text: bool,
}

impl Execution {
    pub fn new(at: Duration) -> Self {
        Self { at, ..Self::default() }
    }

    /// Applies the effects of all faults that hit the call: what interrupts it, and the added delay.
    pub fn apply<'e>(
        &mut self,
        effects: impl IntoIterator<Item = &'e Effect>,
        hang: Duration,
    ) -> (Duration, Option<Interruption>) {
        let mut delay = Duration::ZERO;
        for effect in effects {
            let interruption = match effect {
                Effect::Error(words) => Interruption::Error(words.clone()),
                Effect::Html => Interruption::Html,
                Effect::Closed => Interruption::Close(Duration::ZERO),
                Effect::Hang => Interruption::Close(hang),
                Effect::Delay(seconds) => {
                    delay += Duration::from_secs_f64(*seconds);
                    continue;
                }
                Effect::LostAnswer => {
                    self.is_lost = true;
                    continue;
                }
                Effect::Truncated => {
                    self.is_truncated = true;
                    continue;
                }
                Effect::Text => {
                    self.is_text = true;
                    continue;
                }
            };
            return (delay, Some(interruption));
        }
        (delay, None)
    }

    /// Changes a response as the faults say.
    pub fn change(&self, status: &mut u16, body: &mut Bytes) {
        if self.is_text {
            (*status, *body) = (200, Bytes::from_static(b"this is not JSON\n"));
        }
        if self.is_truncated {
            body.truncate(body.len() / 2);
        }
    }
}

/// Outcome of a received call, with a response `R`, or an execution `X`.
#[derive(Debug)]
pub enum CallOutcome<R, X = Execution> {
    Execute(X),
    Respond(R),
    /// The connection is closed after this time.
    Disconnect(Duration),
}

impl<R, X> CallOutcome<R, X> {
    /// The response, after the latency of the call. `None` means that the connection is closed.
    pub async fn respond(self, latency: Duration, execute: impl AsyncFnOnce(X) -> Option<R>) -> Option<R> {
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        match self {
            Self::Execute(execution) => execute(execution).await,
            Self::Respond(response) => Some(response),
            Self::Disconnect(after) => {
                tokio::time::sleep(after).await;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(text: &str) -> Effect {
        Effect::parse(text, |code| code.starts_with('Q')).unwrap()
    }

    #[test]
    fn effects_are_read_from_their_names_and_errors() {
        let error = |status, code: Option<&str>| {
            Effect::Error(ErrorWords { status, code: code.map(str::to_owned), ..ErrorWords::default() })
        };
        assert_eq!(effect("503"), error(Some(503), None));
        assert_eq!(effect("Quota"), error(None, Some("Quota")));
        assert_eq!(effect("403:Quota"), error(Some(403), Some("Quota")));
        let mut delay = effect("delay");
        assert_eq!((delay.set("s", "0.5"), delay.clone()), (Ok(true), Effect::Delay(0.5)));
        assert!(delay.set("s", "-1").is_err());
        assert_eq!(effect("hang").set("s", "1"), Ok(false));
        for text in ["399", "600", "x:Quota", "quota"] {
            assert!(Effect::parse(text, |_| false).unwrap_err().contains(text));
        }
    }

    #[test]
    fn the_first_interruption_counts_after_the_delays_before_it() {
        let hang = Duration::from_secs(9);
        let mut execution = Execution::new(Duration::from_secs(1));
        let applied = execution.apply(&["delay", "lost-answer", "hang", "503"].map(effect), hang);
        assert_eq!(applied, (Duration::from_secs(1), Some(Interruption::Close(hang))));
        let mut execution = Execution::default();
        assert_eq!(execution.apply(&["truncated", "text"].map(effect), hang), (Duration::ZERO, None));
        assert!(execution.is_truncated && execution.is_text && !execution.is_lost);
    }
}
