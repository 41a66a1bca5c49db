//! The picture, from top to bottom: the thread's name, then each message with its author, text, files, boxes, buttons and
//! signs.

use super::markup::{Block, Face, Kind, Run, blocks};
use super::measure::{CODE_SIZE, columns_in, width, wrapped, wrapped_code};
use super::svg::{Area, Canvas};
use super::{Transcript, badge};
use crate::fake_discord::core::model::message_kind::{
    CHANNEL_NAME_CHANGE, CHAT_INPUT_COMMAND, RECIPIENT_ADD, THREAD_CREATED,
};
use crate::fake_discord::core::model::{Attachment, Id, Message, Ms};
use serde_json::Value;

const WIDTH: f64 = 760.0;
const PADDING: f64 = 20.0;
/// Where texts begin, right of the pictures of people.
const LEFT: f64 = 76.0;
const ROOM: f64 = WIDTH - LEFT - PADDING;
const SIZE: f64 = 15.0;
const LINE: f64 = 21.0;
const SMALL: f64 = 12.0;
const CODE: f64 = 13.0;
const CODE_LINE: f64 = 18.0;
/// Messages of one person within this time stand together.
const TOGETHER_MS: Ms = 7 * 60 * 1_000;
/// A day, an hour and a minute.
const DAY_MS: Ms = 86_400_000;
const HOUR_MS: Ms = 3_600_000;
const MINUTE_MS: Ms = 60_000;
/// Behind people's first letters, in the order in which they come.
const COLOURS: [&str; 5] = ["#4f5bd5", "#b8478f", "#23815e", "#b06a17", "#5d6470"];

/// Draws a thread.
#[must_use]
pub fn draw(transcript: &Transcript) -> String {
    let mut page = Page { canvas: Canvas::default(), y: 0.0, transcript, seen: Vec::new() };
    page.head();
    let mut before: Option<&Message> = None;
    for message in &transcript.messages {
        page.message(message, before);
        before = Some(message);
    }
    page.finish()
}

/// The hour and minute of a time, in UTC.
fn clock(at: Ms) -> String {
    format!("{:02}:{:02}", at % DAY_MS / HOUR_MS, at % HOUR_MS / MINUTE_MS)
}

/// How a line of a diff looks.
fn in_diff(line: &str) -> &'static str {
    match line.as_bytes() {
        [b'+', ..] => "mono more",
        [b'-', ..] => "mono less",
        _ => "mono",
    }
}

const fn is_notice(message: &Message) -> bool {
    matches!(message.kind, RECIPIENT_ADD | CHANNEL_NAME_CHANGE | THREAD_CREATED)
}

struct Page<'a> {
    canvas: Canvas,
    /// What is drawn next begins here.
    y: f64,
    transcript: &'a Transcript,
    /// Who was drawn, in order: each has a colour.
    seen: Vec<Id>,
}

impl Page<'_> {
    fn head(&mut self) {
        let channel = format!("#{}", self.transcript.channel);
        let bold = Face { bold: true, ..Face::default() };
        let wide = width(&channel, bold, SIZE);
        self.canvas.fitted("muted bold", (PADDING, 32.0), SIZE, (&channel, wide));
        self.canvas.text("muted", (PADDING + wide + 10.0, 32.0), SIZE, "›");
        self.canvas.text("strong bold", (PADDING + wide + 26.0, 32.0), SIZE, &self.transcript.thread);
        self.canvas.area("f-chip", Area { x: 0.0, y: 50.0, width: WIDTH, height: 1.0 }, 0.0);
        self.y = 54.0;
    }

    fn finish(self) -> String {
        let height = self.y + PADDING;
        let mut whole = Canvas::default();
        let page = Area { x: 0.5, y: 0.5, width: WIDTH - 1.0, height: height - 1.0 };
        whole.area("f-page", page, 10.0);
        whole.area("s-edge", page, 10.0);
        whole.extend(self.canvas);
        let title = format!("The thread {} in #{}", self.transcript.thread, self.transcript.channel);
        whole.file(&title, WIDTH, height)
    }

    fn message(&mut self, message: &Message, before: Option<&Message>) {
        if is_notice(message) {
            let text = format!("{}: {}", self.transcript.name(message.author_id), message.content);
            self.y += LINE;
            self.canvas.text("muted", (LEFT, self.y), SMALL, &text);
            return;
        }
        let is_command = message.kind == CHAT_INPUT_COMMAND;
        let goes_on = before.is_some_and(|before| {
            let soon = message.created_ms.saturating_sub(before.created_ms) < TOGETHER_MS;
            before.author_id == message.author_id && soon && !is_notice(before) && !is_command
        });
        if goes_on {
            self.y += 8.0;
        } else {
            self.author(message);
        }
        self.blocks(message);
        message.attachments.iter().for_each(|file| self.file(file));
        message.embeds.iter().for_each(|embed| self.embed(embed));
        self.buttons(message);
        self.reactions(message);
    }

    /// Who it is by and when it was said; above it, which command it answers.
    fn author(&mut self, message: &Message) {
        self.y += 18.0;
        if let Some(origin) = &message.origin {
            let who = self.transcript.name(origin.user_id);
            let used = origin.name.as_ref().map(|name| format!("{who} used /{name}"));
            self.y += 14.0;
            self.canvas.text("muted", (LEFT, self.y), SMALL, used.as_deref().unwrap_or(who));
            self.y += 6.0;
        }
        let id = message.author_id;
        let name = message.username.as_deref().unwrap_or_else(|| self.transcript.name(id)).to_owned();
        let number = self.seen.iter().position(|seen| *seen == id).unwrap_or_else(|| {
            self.seen.push(id);
            self.seen.len() - 1
        });
        let middle = (PADDING + 20.0, self.y + 20.0);
        self.canvas.disc(COLOURS.get(number % COLOURS.len()).copied().unwrap_or_default(), middle, 20.0);
        let letter: String = name.chars().take(1).flat_map(char::to_uppercase).collect();
        self.canvas.text("white bold mid", (middle.0, middle.1 + 6.0), 17.0, &letter);
        self.y += 14.0;
        let bold = Face { bold: true, ..Face::default() };
        let wide = width(&name, bold, SIZE).min(ROOM - 120.0);
        self.canvas.fitted("strong bold", (LEFT, self.y), SIZE, (&name, wide));
        let mut x = LEFT + wide + 8.0;
        if message.webhook_id.is_some() || self.transcript.user(id).is_some_and(|user| user.bot) {
            self.canvas.area("f-b1", Area { x, y: self.y - 12.0, width: 32.0, height: 15.0 }, 4.0);
            self.canvas.text("white bold mid", (x + 16.0, self.y - 1.0), 10.0, "APP");
            x += 40.0;
        }
        self.canvas.text("muted", (x, self.y), SMALL, &clock(message.created_ms));
        self.y += 4.0;
    }

    fn blocks(&mut self, message: &Message) {
        for block in blocks(&message.content) {
            match block {
                Block::Line(kind, runs) => self.line(kind, &runs),
                Block::Code(lines) => self.code(&lines, |_| "mono"),
                Block::Diff(lines) => self.code(&lines, in_diff),
            }
        }
        if message.edited_ms.is_some() {
            self.y += 16.0;
            self.canvas.text("muted", (LEFT, self.y), 10.5, "(edited)");
        }
    }

    fn line(&mut self, kind: Kind, runs: &[Run]) {
        let (size, high, x) = match kind {
            Kind::Plain => (SIZE, LINE, LEFT),
            Kind::Quote => (SIZE, LINE, LEFT + 14.0),
            Kind::Small => (SMALL, 17.0, LEFT),
            Kind::Heading(level) => (SIZE + 10.0 - 3.0 * f64::from(level), LINE + 8.0, LEFT),
        };
        let is_heading = matches!(kind, Kind::Heading(_));
        let runs: Vec<Run> = runs
            .iter()
            .map(|run| Run {
                face: Face { bold: run.face.bold || is_heading, ..run.face },
                text: self.named(run),
            })
            .collect();
        if runs.is_empty() {
            self.y += LINE / 2.0;
            return;
        }
        for line in wrapped(&runs, size, WIDTH - PADDING - x) {
            if kind == Kind::Quote {
                self.canvas.area("f-bar", Area { x: LEFT, y: self.y + 2.0, width: 4.0, height: high }, 2.0);
            }
            self.y += high;
            self.runs(&line.runs, (x, size), if kind == Kind::Small { "muted" } else { "" });
        }
    }

    /// The text of a run; of one that names somebody, their name.
    fn named(&self, run: &Run) -> String {
        match run.text.parse() {
            Ok(id) if run.face.mention => format!("@{}", self.transcript.name(id)),
            _ => run.text.clone(),
        }
    }

    fn runs(&mut self, runs: &[Run], (mut x, size): (f64, f64), class: &str) {
        for run in runs {
            let wide = width(&run.text, run.face, size);
            let mut class = class.to_owned();
            let is_link = run.face.link || run.face.mention;
            let faces = [(run.face.bold, " bold"), (run.face.italic, " italic"), (is_link, " link")];
            faces.iter().filter(|(is, _)| *is).for_each(|(_, name)| class.push_str(name));
            // Not every reader of such files keeps the space that a text begins with.
            let text = if run.face.code { run.text.as_str() } else { run.text.trim_start() };
            let lead = wide - width(text, run.face, size);
            x += lead;
            let wide = wide - lead;
            let (mut at, mut font) = (x, size);
            if run.face.code {
                let area = Area { x: x + 1.0, y: self.y - size + 1.0, width: wide + 6.0, height: size + 4.0 };
                self.canvas.area("f-chip", area, 4.0);
                class.push_str(" mono");
                (at, font, x) = (x + 4.0, size * CODE_SIZE, x + 8.0);
            }
            if runs.len() > 1 {
                self.canvas.fitted(class.trim(), (at, self.y), font, (text, wide));
            } else {
                self.canvas.text(class.trim(), (at, self.y), font, text);
            }
            x += wide;
        }
    }

    fn code(&mut self, lines: &[String], class: fn(&str) -> &'static str) {
        let columns = columns_in(ROOM - 24.0, CODE);
        let wrapped =
            |line: &String| wrapped_code(line, columns).into_iter().map(|it| (class(line), it)).collect();
        let lines: Vec<(&str, String)> = lines.iter().flat_map::<Vec<_>, _>(wrapped).collect();
        let height = lines.iter().map(|_| CODE_LINE).sum::<f64>() + 18.0;
        let area = Area { x: LEFT, y: self.y + 8.0, width: ROOM, height };
        self.canvas.area("f-code", area, 6.0);
        self.canvas.area("s-edge", area, 6.0);
        self.y += 14.0;
        for (class, line) in lines {
            self.y += CODE_LINE;
            self.canvas.text(class, (LEFT + 12.0, self.y), CODE, &line);
        }
        self.y += 14.0;
    }

    fn file(&mut self, file: &Attachment) {
        let area = Area { x: LEFT, y: self.y + 8.0, width: 400.0_f64.min(ROOM), height: 46.0 };
        self.canvas.area("f-code", area, 6.0);
        self.canvas.area("s-edge", area, 6.0);
        self.canvas.text("link", (LEFT + 14.0, self.y + 28.0), 14.0, &file.filename);
        self.canvas.text("muted", (LEFT + 14.0, self.y + 45.0), SMALL, &format!("{} bytes", file.size));
        self.y += 58.0;
    }

    fn embed(&mut self, embed: &Value) {
        let text = |pointer: &str| embed.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let top = self.y + 8.0;
        self.y += 12.0;
        let mut parts: Vec<(String, &str, f64)> = vec![
            (text("/author/name").to_owned(), "bold", SMALL),
            (text("/title").to_owned(), "strong bold", SIZE),
        ];
        parts.extend(text("/description").lines().map(|line| (line.to_owned(), "", 14.0)));
        for field in embed["fields"].as_array().into_iter().flatten() {
            let of = |key: &str| field[key].as_str().unwrap_or_default().to_owned();
            parts.extend([(of("name"), "strong bold", 13.0), (of("value"), "", 14.0)]);
        }
        parts.push((text("/footer/text").to_owned(), "muted", SMALL));
        for (text, class, size) in parts.into_iter().filter(|(text, ..)| !text.is_empty()) {
            let face = Face { bold: class.contains("bold"), ..Face::default() };
            for line in wrapped(&[Run { text, face }], size, ROOM - 32.0) {
                self.y += size + 6.0;
                let line: String = line.runs.into_iter().map(|run| run.text).collect();
                self.canvas.text(class, (LEFT + 16.0, self.y), size, &line);
            }
        }
        self.y += 10.0;
        self.canvas.area("s-edge", Area { x: LEFT, y: top, width: ROOM, height: self.y - top }, 4.0);
        self.canvas.area("f-bar", Area { x: LEFT, y: top, width: 4.0, height: self.y - top }, 2.0);
    }

    fn buttons(&mut self, message: &Message) {
        for row in message.components.iter().filter_map(|row| row["components"].as_array()) {
            let (mut x, height) = (LEFT, 32.0);
            self.y += 10.0;
            for button in row {
                let label = button["label"].as_str().or_else(|| button["placeholder"].as_str());
                let label = label.unwrap_or("…");
                let wide = (width(label, Face { bold: true, ..Face::default() }, 14.0) + 32.0).min(ROOM);
                if x + wide > LEFT + ROOM {
                    (x, self.y) = (LEFT, self.y + height + 8.0);
                }
                let style = button["style"].as_u64().filter(|style| (1..=4).contains(style)).unwrap_or(2);
                self.canvas.area(&format!("f-b{style}"), Area { x, y: self.y, width: wide, height }, 6.0);
                let class = if style == 2 { "on-b2 bold mid" } else { "white bold mid" };
                self.canvas.text(class, (x + wide / 2.0, self.y + 21.0), 14.0, label);
                x += wide + 8.0;
            }
            self.y += height;
        }
    }

    fn reactions(&mut self, message: &Message) {
        let shown: Vec<(&String, usize)> = message
            .reactions
            .iter()
            .map(|(emoji, who)| (emoji, who.len()))
            .filter(|(_, count)| *count > 0)
            .collect();
        if shown.is_empty() {
            return;
        }
        self.y += 8.0;
        let mut x = LEFT;
        for (emoji, count) in shown {
            let area = Area { x, y: self.y, width: 48.0, height: 26.0 };
            self.canvas.area("f-chip", area, 8.0);
            match badge::shape(emoji) {
                Some(shape) => self.canvas.shape((x + 8.0, self.y + 5.0), shape),
                None => self.canvas.text("", (x + 7.0, self.y + 19.0), SIZE, emoji),
            }
            self.canvas.text("", (x + 31.0, self.y + 18.0), 13.0, &count.to_string());
            x += 54.0;
        }
        self.y += 26.0;
    }
}
