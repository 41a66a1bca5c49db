//! Times as text for people.

const DAY_S: u64 = 86_400;

/// Formats milliseconds since the Unix epoch as a UTC time: `2026-11-22T05:46:41Z`.
pub fn format_utc(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (mut days, of_day) = (seconds / DAY_S, seconds % DAY_S);
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length || year == 9_999 {
            break;
        }
        days -= length;
        year += 1;
    }
    let mut month = 1;
    for length in [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    // Times after the year 9999 become the last day of that year.
    let day = days.min(30) + 1;
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

#[cfg(test)]
mod tests {
    use super::format_utc;

    #[test]
    fn timestamps_match_the_calendar() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(format_utc(seconds * 1_000), want);
        }
        assert!(format_utc(u64::MAX).starts_with("9999-12-31T"), "{}", format_utc(u64::MAX));
    }
}
