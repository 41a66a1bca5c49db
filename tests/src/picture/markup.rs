//! What Discord makes of the text of a message, as far as agents use it: fences, code, bold and italic words, quotes,
//! headings, lists, small print, links, names.

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Face {
    /// Bold.
    pub bold: bool,
    /// Italic.
    pub italic: bool,
    /// As code.
    pub code: bool,
    /// A link.
    pub link: bool,
    /// The id of somebody who is named: Discord shows the name.
    pub mention: bool,
}

/// Text of one face.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The text, without what marked it.
    pub text: String,
    /// How it looks.
    pub face: Face,
}

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Plain,
    /// Text of somebody else.
    Quote,
    /// Small print.
    Small,
    /// A heading of this level, 1 to 3.
    Heading(u8),
}

/// A part of a message, from top to bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// A line, before it is broken to fit.
    Line(Kind, Vec<Run>),
    /// Code, line by line.
    Code(Vec<String>),
    /// The same of what changed, which has colours.
    Diff(Vec<String>),
}

const FENCE: &str = "```";

/// The parts of a text.
#[must_use]
pub fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((before, (language, code), after)) = fenced(rest) {
        found.extend(before.lines().map(line));
        let lines = code.lines().map(str::to_owned).collect();
        found.push(if language == "diff" { Block::Diff(lines) } else { Block::Code(lines) });
        rest = after.strip_prefix('\n').unwrap_or(after);
    }
    found.extend(rest.lines().map(line));
    found
}

/// The first fence that is closed: what stands before it, its language with what is in it, and what stands behind it. A
/// fence that is not closed is text.
fn fenced(text: &str) -> Option<(&str, (&str, &str), &str)> {
    let (before, rest) = text.split_once(FENCE)?;
    let (inside, after) = rest.split_once(FENCE)?;
    // The first line names the language, if it is one word with more below it.
    let is_name = |line: &str| line.chars().all(|c| c.is_alphanumeric() || "+-_.#".contains(c));
    let code = match inside.split_once('\n') {
        Some((first, more)) if is_name(first) => (first, more),
        _ => ("", inside),
    };
    let code = (code.0, code.1.trim_end_matches('\n'));
    Some((before.strip_suffix('\n').unwrap_or(before), code, after))
}

fn line(text: &str) -> Block {
    let marked = [
        ("> ", Kind::Quote),
        ("-# ", Kind::Small),
        ("### ", Kind::Heading(3)),
        ("## ", Kind::Heading(2)),
        ("# ", Kind::Heading(1)),
    ];
    for (mark, kind) in marked {
        if let Some(rest) = text.strip_prefix(mark) {
            return Block::Line(kind, runs(rest));
        }
    }
    match text.strip_prefix("- ").or_else(|| text.strip_prefix("* ")) {
        Some(rest) => {
            let bullet = Run { text: "•  ".to_owned(), face: Face::default() };
            Block::Line(Kind::Plain, std::iter::once(bullet).chain(runs(rest)).collect())
        }
        None => Block::Line(Kind::Plain, runs(text)),
    }
}

/// The runs of one line.
#[must_use]
pub fn runs(text: &str) -> Vec<Run> {
    let mut found = Vec::new();
    spans(text, Face::default(), &mut found);
    found
}

/// What a mark makes of how a text looks.
type Change = fn(Face) -> Face;

/// What may stand around words, longest first.
const MARKS: [(&str, Change); 4] = [
    ("`", |face| Face { code: true, ..face }),
    ("**", |face| Face { bold: true, ..face }),
    ("*", |face| Face { italic: true, ..face }),
    ("_", |face| Face { italic: true, ..face }),
];

fn spans(text: &str, face: Face, found: &mut Vec<Run>) {
    let mut plain = String::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        if let Some((inner, taken, inner_face)) = marked(rest, before, face) {
            push(std::mem::take(&mut plain), face, found);
            if inner_face.code {
                push(inner.to_owned(), inner_face, found);
            } else {
                spans(inner, inner_face, found);
            }
            at += taken;
        } else if let Some(link) = link(rest) {
            push(std::mem::take(&mut plain), face, found);
            push(link.to_owned(), Face { link: true, ..face }, found);
            at += link.len();
        } else if let Some(id) = mention(rest) {
            push(std::mem::take(&mut plain), face, found);
            push(id.to_owned(), Face { mention: true, ..face }, found);
            at += id.len() + "<@>".len();
        } else {
            let (c, taken) = escaped(rest);
            plain.push(c);
            at += taken;
        }
    }
    push(plain, face, found);
}

/// Words between two marks at the start of a text: the words, how much that takes, how they look.
fn marked(text: &str, before: Option<char>, face: Face) -> Option<(&str, usize, Face)> {
    let (mark, change) = MARKS.iter().find(|(mark, _)| text.starts_with(mark))?;
    let inside = text.get(mark.len()..)?;
    let end = inside.find(mark).filter(|end| *end > 0)?;
    let (inner, after) = (inside.get(..end)?, inside.get(end + mark.len()..)?);
    // Names with underscores, products and empty space are no emphasis.
    let is_code = *mark == "`";
    let inside_a_word = *mark == "_"
        && (before.is_some_and(char::is_alphanumeric) || after.starts_with(char::is_alphanumeric));
    let is_spaced = inner.starts_with(char::is_whitespace) || inner.ends_with(char::is_whitespace);
    if !is_code && (inside_a_word || is_spaced) {
        return None;
    }
    Some((inner, mark.len() * 2 + end, change(face)))
}

fn link(text: &str) -> Option<&str> {
    if !text.starts_with("https://") && !text.starts_with("http://") {
        return None;
    }
    let end = text.find(|c: char| c.is_whitespace() || "<>\"'`)".contains(c)).unwrap_or(text.len());
    text.get(..end).map(|link| link.trim_end_matches(['.', ',', ';', ':']))
}

/// The id of whoever is named at the start of a text.
fn mention(text: &str) -> Option<&str> {
    let (id, _) = text.strip_prefix("<@")?.split_once('>')?;
    (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit())).then_some(id)
}

/// The first character, without the backslash that kept it from being a mark; and how much that takes.
fn escaped(text: &str) -> (char, usize) {
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some('\\'), Some(c)) if c.is_ascii_punctuation() => (c, 2),
        (Some(c), _) => (c, c.len_utf8()),
        (None, _) => (' ', 1),
    }
}

fn push(text: String, face: Face, found: &mut Vec<Run>) {
    if !text.is_empty() {
        found.push(Run { text, face });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str, change: impl FnOnce(&mut Face)) -> Run {
        let mut face = Face::default();
        change(&mut face);
        Run { text: text.to_owned(), face }
    }

    fn plain(text: &str) -> Run {
        run(text, |_| {})
    }

    #[test]
    fn words_look_as_their_marks_say() {
        for (text, want) in [
            ("", vec![]),
            ("a b", vec![plain("a b")]),
            ("a `b*c*` d", vec![plain("a "), run("b*c*", |face| face.code = true), plain(" d")]),
            ("**a** *b* _c_", {
                let (bold, italic) =
                    (run("a", |face| face.bold = true), |text| run(text, |face| face.italic = true));
                vec![bold, plain(" "), italic("b"), plain(" "), italic("c")]
            }),
            ("**a *b***", {
                // The inner mark is not closed before the outer one.
                vec![run("a *b", |face| face.bold = true), plain("*")]
            }),
            ("acp_host_x, 2 * 3 * 4, ``", vec![plain("acp_host_x, 2 * 3 * 4, ``")]),
            (r"\*a\* \n", vec![plain(r"*a* \n")]),
            (
                "see https://x.y/z.",
                vec![plain("see "), run("https://x.y/z", |face| face.link = true), plain(".")],
            ),
            ("`open", vec![plain("`open")]),
            (r"of <@7>, \<@8>, `<@9>` <@x>", {
                let named = run("7", |face| face.mention = true);
                vec![
                    plain("of "),
                    named,
                    plain(", <@8>, "),
                    run("<@9>", |face| face.code = true),
                    plain(" <@x>"),
                ]
            }),
        ] {
            assert_eq!(runs(text), want, "{text}");
        }
    }

    #[test]
    fn lines_and_fences_are_parts() {
        let line = |kind, text: &str| Block::Line(kind, runs(text));
        let code = |lines: &[&str]| Block::Code(lines.iter().map(|&line| line.to_owned()).collect());
        for (text, want) in [
            ("a\n\nb", vec![line(Kind::Plain, "a"), line(Kind::Plain, ""), line(Kind::Plain, "b")]),
            (
                "> q\n-# s\n## h",
                vec![line(Kind::Quote, "q"), line(Kind::Small, "s"), line(Kind::Heading(2), "h")],
            ),
            ("- a", vec![Block::Line(Kind::Plain, vec![plain("•  "), plain("a")])]),
            ("a\n```rust\nfn f() {}\n\n}\n```\nb", {
                vec![line(Kind::Plain, "a"), code(&["fn f() {}", "", "}"]), line(Kind::Plain, "b")]
            }),
            ("```diff\n-a\n+b\n```", vec![Block::Diff(vec!["-a".to_owned(), "+b".to_owned()])]),
            ("```one line```", vec![code(&["one line"])]),
            ("```\n**x**\n```", vec![code(&["**x**"])]),
            ("```\nopen", vec![line(Kind::Plain, "```"), line(Kind::Plain, "open")]),
        ] {
            assert_eq!(blocks(text), want, "{text}");
        }
    }
}
