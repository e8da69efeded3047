//! Which nats-servers are spoken to.
//!
//! Older servers silently drop settings that they do not know, or lack fixes of security advisories; tenants that share a server rely on
//! these. Fixes go to the lines of releases that are maintained, so each line has a floor of its own.

/// First release that is accepted of the line 2.12.
const FLOOR_OF_2_12: (u64, u64, u64) = (2, 12, 7);
/// First release that is accepted of what is behind that line. There is none of 2.13.
const FLOOR_BEHIND: (u64, u64, u64) = (2, 14, 0);

/// What is accepted, in words.
pub const SERVER_VERSIONS: &str = "2.12.7 or later of 2.12, or 2.14.0 or later";

/// Whether a server that calls itself `version` is spoken to: `2.12.7`, `v2.14.1`, `2.15.0-RC.2`.
///
/// A candidate for a release comes before it: `2.14.0-RC.1` may lack what 2.14.0 has. What cannot be read is not trusted.
pub(super) fn is_supported(version: &str) -> bool {
    let Some((release, is_candidate)) = parsed(version) else {
        return false;
    };
    let reaches = |floor| release > floor || release == floor && !is_candidate;
    if (release.0, release.1) == (FLOOR_OF_2_12.0, FLOOR_OF_2_12.1) {
        reaches(FLOOR_OF_2_12)
    } else {
        reaches(FLOOR_BEHIND)
    }
}

/// The three numbers, and whether it is a candidate for them.
fn parsed(version: &str) -> Option<((u64, u64, u64), bool)> {
    let version = version.strip_prefix('v').unwrap_or(version);
    // What follows `+` names a build of the same release.
    let (version, _build) = version.split_once('+').unwrap_or((version, ""));
    let (release, is_candidate) = match version.split_once('-') {
        Some((release, _)) => (release, true),
        None => (version, false),
    };
    let mut parts = release.split('.').map(number);
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) => {
            Some(((major, minor, patch), is_candidate))
        }
        _ => None,
    }
}

/// Digits alone: `str::parse` would take a sign, too.
fn number(part: &str) -> Option<u64> {
    let digits = part.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| part.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_releases_is_accepted_from_its_floor_on() {
        for good in [
            "2.12.7", "v2.12.7", "2.12.8", "2.12.100", "2.14.0", "2.14.3", "2.15.1", "2.100.0", "3.0.0",
        ] {
            assert!(is_supported(good), "{good}");
        }
        for bad in [
            "2.12.0", "2.12.6", "2.13.0", "2.13.99", "2.11.99", "2.9.10", "1.99.99", "0.0.0",
        ] {
            assert!(!is_supported(bad), "{bad}");
        }
    }

    #[test]
    fn a_candidate_comes_before_its_release() {
        for good in [
            "2.12.8-RC.1",
            "2.14.1-RC.1",
            "2.15.0-RC.2",
            "2.14.0+build.5",
            "2.12.7+rc",
            "3.0.0-beta.1",
        ] {
            assert!(is_supported(good), "{good}");
        }
        for bad in [
            "2.12.7-RC.1",
            "v2.12.7-RC.3",
            "2.14.0-RC.1",
            "2.14.0-preview.2+build",
            "2.13.5-RC.1",
            "2.12.6-RC.9",
        ] {
            assert!(!is_supported(bad), "{bad}");
        }
    }

    #[test]
    fn a_version_that_cannot_be_read_is_not_trusted() {
        for bad in [
            "",
            "v",
            "2.12",
            "2.14",
            "banana",
            "2.x.1",
            "2.14.0.1",
            "vv2.15.0",
            "2.+15.0",
            "2.15.-1",
            "2. 15.0",
            "-2.15.0",
            "2.15.",
            "2.15.0 ",
            "18446744073709551616.0.0",
            "２.15.0",
        ] {
            assert!(!is_supported(bad), "{bad:?}");
        }
    }
}
