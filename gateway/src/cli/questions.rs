//! Questions of the setup verbs on standard error, with answers from standard input, one line each. Ctrl-C ends the
//! command and leaves the terminal as it was.

#[cfg(feature = "discord")]
mod hidden_input;

use crate::cli::output::{CliError, print_message};
use crate::cli::stop_signals::StopSignals;
use crate::cli::{inside, usage};
use acp_core::failure::Failure;
use std::io::{self, BufRead as _, Write as _};
use tokio::sync::mpsc;

/// Maximum number of wrong answers to one question.
const ATTEMPTS: usize = 5;
/// Exit code after Ctrl-C, by shell convention.
const INTERRUPTED: u8 = 130;

/// Questions to a person, or to a script that answers on standard input.
#[derive(Debug)]
pub(crate) struct Questions {
    /// True if every question takes its default.
    takes_defaults: bool,
    /// Typed lines; the reading thread starts with the first question.
    lines: Option<mpsc::Receiver<io::Result<String>>>,
    stop: StopSignals,
}

impl Questions {
    /// Creates the questions; with `takes_defaults` nothing is asked that has a default.
    ///
    /// # Errors
    /// `RUNTIME` if signals cannot be handled.
    pub(crate) fn new(takes_defaults: bool) -> Result<Self, Failure> {
        Ok(Self { takes_defaults, lines: None, stop: StopSignals::listen()? })
    }

    /// Prints an explanation before a question.
    pub(crate) fn explain(&self, text: &str) {
        if !self.takes_defaults {
            print_message(text);
        }
    }

    /// Asks until an answer is valid; an empty answer is the default.
    ///
    /// # Errors
    /// `USAGE` at the end of the input, after five wrong answers, or for an invalid default; exit code 130 after
    /// Ctrl-C.
    pub(crate) async fn ask<T>(
        &mut self,
        question: &str,
        default: &str,
        parse: impl Fn(&str) -> Result<T, Failure>,
    ) -> Result<T, CliError> {
        if self.takes_defaults {
            return Ok(parse(default)?);
        }
        for _ in 0..ATTEMPTS {
            let line = self
                .line(&format!("{question} [{default}]: "), "use flags, or --yes for the defaults")
                .await?;
            let answer = line.trim();
            match parse(if answer.is_empty() { default } else { answer }) {
                Ok(answer) => return Ok(answer),
                Err(failure) => print_message(&failure.message),
            }
        }
        Err(usage(format!("{question}: {ATTEMPTS} invalid answers")).into())
    }

    /// Asks for a secret, which a terminal does not show, until `check` accepts it. `flag` says how to give it without a question.
    ///
    /// # Errors
    /// As [`Questions::ask`].
    #[cfg(feature = "discord")]
    pub(crate) async fn secret(
        &mut self,
        question: &str,
        flag: &str,
        check: impl Fn(&str) -> Result<(), Failure>,
    ) -> Result<acp_shared::redact::Secret, CliError> {
        for _ in 0..ATTEMPTS {
            let hidden = hidden_input::HiddenInput::start();
            let line = self.line(question, flag).await;
            drop(hidden);
            let secret = line?.trim().to_owned();
            match check(&secret) {
                Ok(()) => return Ok(acp_shared::redact::Secret::new(secret)),
                Err(failure) => print_message(&failure.message),
            }
        }
        Err(usage(format!("{}: {ATTEMPTS} invalid answers", question.trim_end_matches([' ', ':', '\n'])))
            .into())
    }

    /// Waits for something other than an answer.
    ///
    /// # Errors
    /// Exit code 130 after Ctrl-C.
    pub(crate) async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T, CliError> {
        tokio::select! {
            biased;
            () = self.stop.recv() => Err(CliError::Code(INTERRUPTED)),
            done = work => Ok(done),
        }
    }

    /// Asks, and returns the typed line. `otherwise` says what helps where nobody can answer.
    async fn line(&mut self, question: &str, otherwise: &str) -> Result<String, CliError> {
        show(question)?;
        let lines = self.lines.get_or_insert_with(stdin_lines);
        let line = tokio::select! {
            line = lines.recv() => line,
            () = self.stop.recv() => {
                // The verbs write their files after the last question.
                print_message("\nInterrupted; nothing was written.");
                return Err(CliError::Code(INTERRUPTED));
            }
        };
        match line {
            Some(line) => Ok(line.map_err(|error| inside("cannot read the answer", &error))?),
            None => {
                let what = question.trim_end_matches([' ', ':', '\n']);
                Err(usage(format!("no answer to {what:?}: {otherwise}")).into())
            }
        }
    }
}

/// Lines of standard input, read on a thread that ends with the process.
fn stdin_lines() -> mpsc::Receiver<io::Result<String>> {
    let (lines, typed) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    typed
}

fn show(question: &str) -> Result<(), Failure> {
    let mut stderr = io::stderr().lock();
    let shown = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush());
    shown.map_err(|error| inside("cannot ask", &error))
}
