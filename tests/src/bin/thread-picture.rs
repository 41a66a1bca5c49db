//! Draws a thread of the fake Discord; see `acp_tests::picture`.
//!
//! - `thread-picture take STORE` prints, as JSON, the newest thread in what a fake has kept (`--thread ID`: another one).
//! - `thread-picture draw JSON` prints the picture of such a transcript, as SVG.

use acp_tests::fake_discord::store::Store;
use acp_tests::picture::{Transcript, page};
use clap::{Parser, Subcommand};
use std::io::Write as _;
use std::path::PathBuf;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(about = "Draws a thread of the fake Discord")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Print a thread of a store as JSON
    Take {
        /// What the fake was started with as `--store`
        store: PathBuf,
        /// The thread, if it is not the newest
        #[arg(long)]
        thread: Option<u64>,
    },
    /// Print the picture of a transcript as SVG
    Draw {
        /// What `take` printed
        transcript: PathBuf,
    },
}

fn run(what: What) -> Result<String, Failure> {
    match what {
        What::Take { store, thread } => {
            let (world, _) = Store::open(Some(&store))?.load()?;
            let newest = || world.channels.iter().rfind(|it| it.thread.is_some()).map(|it| it.id);
            let transcript = thread.or_else(newest).and_then(|id| Transcript::of(&world, id));
            let transcript = transcript.ok_or("there is no such thread")?;
            Ok(serde_json::to_string_pretty(&transcript)? + "\n")
        }
        What::Draw { transcript } => {
            let transcript: Transcript = serde_json::from_slice(&std::fs::read(transcript)?)?;
            Ok(page::draw(&transcript))
        }
    }
}

fn main() -> Result<(), Failure> {
    let text = run(Args::parse().what)?;
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}
