//! Tokenizer of commands: white space, quotes, flags, and typographic variants of `--` and `"`.

/// Characters accepted as one dash.
const SHORT: [char; 11] = [
    '-', '\u{058A}', '\u{05BE}', '\u{1400}', '\u{1806}', '\u{2010}', '\u{2011}', '\u{2E17}', '\u{2E1A}',
    '\u{FE63}', '\u{FF0D}',
];
/// Characters accepted as two dashes: keyboards substitute one of these for a typed `--`.
const LONG: [char; 15] = [
    '\u{2012}', '\u{2013}', '\u{2014}', '\u{2015}', '\u{2212}', '\u{2E3A}', '\u{2E3B}', '\u{2E40}',
    '\u{2E5D}', '\u{301C}', '\u{3030}', '\u{30A0}', '\u{FE31}', '\u{FE32}', '\u{FE58}',
];
/// Double quotes, plain and typographic.
const DOUBLE: [char; 4] = ['"', '\u{201C}', '\u{201D}', '\u{201E}'];

fn is_dash(c: char) -> bool {
    SHORT.contains(&c) || LONG.contains(&c)
}

/// Returns the name after the dashes if `word` begins with two dashes or one character that stands for two.
/// Empty for dashes alone.
pub fn flag(word: &str) -> Option<&str> {
    let name = word.trim_start_matches(is_dash);
    let dashes = word.strip_suffix(name)?;
    let weight: usize = dashes.chars().map(|c| if SHORT.contains(&c) { 1 } else { 2 }).sum();
    (weight >= 2).then_some(name)
}

/// Normalises a keyword of the grammar: lower case, plain dashes.
pub fn normalize_keyword(word: &str) -> String {
    word.chars().map(|c| if is_dash(c) { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Quotes a word from a person for display: shortened, and on one line.
pub fn quote_word(word: &str) -> String {
    let head: String = word.chars().take(40).collect();
    format!("{head:?}")
}

/// Iterator over words that also gives access to the remaining text as typed.
#[derive(Debug, Clone)]
pub struct Tokenizer<'a> {
    rest: &'a str,
}

impl<'a> Tokenizer<'a> {
    /// Creates an iterator over `text`.
    pub const fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    /// Returns the unread text as typed.
    pub fn rest(&self) -> &'a str {
        self.rest.trim()
    }

    /// Returns the next word. Quotes preserve white space; outside of single quotes, a backslash escapes the
    /// next character.
    ///
    /// # Errors
    /// A sentence for the person: unclosed quote, or backslash at the end.
    pub fn next_word(&mut self) -> Result<Option<String>, String> {
        let text = self.rest.trim_start();
        let mut word: Option<String> = None;
        let mut quote: Option<char> = None;
        let mut chars = text.char_indices();
        while let Some((at, c)) = chars.next() {
            match (quote, c) {
                (None, _) if c.is_whitespace() => {
                    self.rest = text.get(at..).unwrap_or_default();
                    return Ok(word);
                }
                (Some('\''), '\\') => word.get_or_insert_default().push(c),
                (_, '\\') => {
                    let (_, next) =
                        chars.next().ok_or_else(|| "A backslash at the end escapes nothing.".to_owned())?;
                    word.get_or_insert_default().push(next);
                }
                (Some('\''), '\'') => quote = None,
                (Some('"'), _) if DOUBLE.contains(&c) => quote = None,
                (Some(_), _) => word.get_or_insert_default().push(c),
                (None, _) if c == '\'' || DOUBLE.contains(&c) => {
                    quote = Some(if c == '\'' { '\'' } else { '"' });
                    word.get_or_insert_default();
                }
                (None, _) => word.get_or_insert_default().push(c),
            }
        }
        if let Some(open) = quote {
            return Err(format!("A quote ({open}) is not closed."));
        }
        self.rest = "";
        Ok(word)
    }
}

/// Flag of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// `--name value` or `--name=value`.
    Value(&'static str),
    /// `--name`.
    Switch(&'static str),
}

impl Flag {
    const fn name(self) -> &'static str {
        match self {
            Self::Value(name) | Self::Switch(name) => name,
        }
    }
}

/// Parsed arguments of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedArgs {
    /// Words that are not flags, in order.
    pub words: Vec<String>,
    flags: Vec<(&'static str, String)>,
}

impl ParsedArgs {
    /// Parses all arguments of a command. A lone `--` ends the flags.
    ///
    /// # Errors
    /// A sentence for the person: unknown flag, repeated flag, or missing value.
    pub fn parse(text: &str, known: &[Flag]) -> Result<Self, String> {
        let mut out = Self::default();
        let mut words = Tokenizer::new(text);
        let mut flags_over = false;
        while let Some(word) = words.next_word()? {
            match flag(&word).filter(|_| !flags_over) {
                None => out.words.push(word),
                Some("") => flags_over = true,
                Some(flag) => out.take_flag(flag, known, &mut words)?,
            }
        }
        Ok(out)
    }

    /// Parses the flags before a text and returns the text as typed.
    ///
    /// # Errors
    /// Same as [`ParsedArgs::parse`].
    pub fn before_text<'a>(text: &'a str, known: &[Flag]) -> Result<(Self, &'a str), String> {
        let mut out = Self::default();
        let mut words = Tokenizer::new(text);
        while words.rest().starts_with(is_dash) {
            let before = words.clone();
            let Some(word) = words.next_word()? else { break };
            match flag(&word) {
                // A single dash belongs to the text.
                None => return Ok((out, before.rest())),
                Some("") => break,
                Some(flag) => out.take_flag(flag, known, &mut words)?,
            }
        }
        Ok((out, words.rest()))
    }

    fn take_flag(&mut self, flag: &str, known: &[Flag], words: &mut Tokenizer<'_>) -> Result<(), String> {
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (normalize_keyword(name), Some(value.to_owned())),
            None => (normalize_keyword(flag), None),
        };
        let Some(known) = known.iter().find(|known| known.name() == name) else {
            return Err(format!("Unknown flag {}.", quote_word(&format!("--{name}"))));
        };
        let value = match (known, value) {
            (Flag::Switch(_), None) => String::new(),
            (Flag::Switch(_), Some(_)) => return Err(format!("--{name} takes no value.")),
            (Flag::Value(_), Some(value)) => value,
            (Flag::Value(_), None) => {
                let next = words.next_word()?;
                next.filter(|next| self::flag(next).is_none()).unwrap_or_default()
            }
        };
        if matches!(known, Flag::Value(_)) && value.is_empty() {
            return Err(format!("--{name} requires a value."));
        }
        if self.has(known.name()) {
            return Err(format!("--{name} is given twice."));
        }
        self.flags.push((known.name(), value));
        Ok(())
    }

    /// True if the flag was given.
    pub fn has(&self, name: &str) -> bool {
        self.flags.iter().any(|(have, _)| *have == name)
    }

    /// Returns the value of a flag, if given.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.flags.iter().find(|(have, _)| *have == name).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Result<Vec<String>, String> {
        ParsedArgs::parse(text, &[]).map(|args| args.words)
    }

    #[test]
    fn words_can_be_quoted() {
        for (text, want) in [
            ("", &[][..]),
            ("  a   b\n\tc ", &["a", "b", "c"]),
            ("'a b' \"c d\"", &["a b", "c d"]),
            ("a' 'b", &["a b"]),
            ("''", &[""]),
            ("'a\\b'", &["a\\b"]),
            ("\"a\\\"b\" a\\ b", &["a\"b", "a b"]),
            ("\u{201C}my own\u{201D} \u{201E}x y\u{201C}", &["my own", "x y"]),
            ("don\u{2019}t", &["don\u{2019}t"]),
            ("-- --x -y", &["--x", "-y"]),
        ] {
            assert_eq!(words(text), Ok(want.iter().map(|&word| word.to_owned()).collect()), "{text:?}");
        }
        for (text, why) in [
            ("'x", "A quote (') is not closed."),
            ("\u{201C}x", "A quote (\") is not closed."),
            ("x\\", "A backslash at the end escapes nothing."),
        ] {
            assert_eq!(words(text), Err(why.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn unicode_dashes_start_flags() {
        for dash in SHORT {
            assert_eq!(flag(&format!("{dash}x")), None, "{dash:?}");
            assert_eq!(flag(&format!("{dash}{dash}x=y")), Some("x=y"), "{dash:?}");
            assert_eq!(flag(&format!("-{dash}x")), Some("x"), "{dash:?}");
        }
        for dash in LONG {
            assert_eq!(flag(&format!("{dash}x")), Some("x"), "{dash:?}");
            assert_eq!(flag(&format!("{dash}{dash}x")), Some("x"), "{dash:?}");
        }
        let want = (None, None, Some(""), Some(""));
        assert_eq!((flag("x--y"), flag("-x"), flag("--"), flag("\u{2014}")), want);
        assert_eq!(normalize_keyword("Set\u{2011}MODE"), "set-mode");
    }

    #[test]
    fn flag_value_follows_space_or_equals_sign() {
        const KNOWN: [Flag; 2] = [Flag::Value("cwd"), Flag::Switch("discard")];
        let read = |text| ParsedArgs::parse(text, &KNOWN);
        for text in ["--cwd /a x", "--cwd=/a x", "x \u{2014}cwd /a", "x \u{2013}CWD=/a", "--cwd '/a' x"] {
            let args = read(text);
            let found =
                args.as_ref().map(|args| (args.value("cwd"), args.words.join(" "), args.has("discard")));
            assert_eq!(found, Ok((Some("/a"), "x".to_owned(), false)), "{text:?}");
        }
    }

    #[test]
    fn text_after_flags_is_unchanged() {
        const KNOWN: [Flag; 1] = [Flag::Value("session")];
        for (text, session, rest) in [
            ("don't \"quote\"", None, "don't \"quote\""),
            ("--session 'a b'  two\n lines", Some("a b"), "two\n lines"),
            ("\u{2014}session=x -- --not-a-flag", Some("x"), "--not-a-flag"),
            ("- one\n- two", None, "- one\n- two"),
            ("text --session x", None, "text --session x"),
            ("--session x", Some("x"), ""),
        ] {
            let read = ParsedArgs::before_text(text, &KNOWN);
            let found = read.as_ref().map(|(args, rest)| (args.value("session"), *rest));
            assert_eq!(found, Ok((session, rest)), "{text:?}");
        }
        let unknown = ParsedArgs::before_text("--sesion x y", &KNOWN).map(|_| ());
        assert_eq!(unknown, Err("Unknown flag \"--sesion\".".to_owned()));
    }

    proptest! {
        #[test]
        fn quoted_words_round_trip(list in prop::collection::vec("\\PC{0,8}", 0..6)) {
            let needs_escape = |c: char| c == '\\' || DOUBLE.contains(&c);
            let quoted = |word: &String| {
                let escaped = word.chars().flat_map(|c| needs_escape(c).then_some('\\').into_iter().chain([c]));
                format!("\"{}\"", escaped.collect::<String>())
            };
            let text: Vec<String> = list.iter().map(quoted).collect();
            prop_assert_eq!(words(&format!("-- {}", text.join(" "))), Ok(list));
        }
    }
}
