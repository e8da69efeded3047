//! The name that the author of an unknown one may have meant.

/// Names are compared up to here, so that a hostile name costs little.
const NAME_CHARS_MAX: usize = 64;

/// The candidate that differs least from `name`, if it is near enough to be meant.
pub fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let (_, candidate) = candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(name.len()) / 3 + 1)
        .min()?;
    Some(candidate)
}

/// The candidate that differs least from `name` and in at most `edits` characters.
pub fn nearest_by<'c>(
    name: &str,
    edits: usize,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let candidates = candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate));
    let (_, candidate) = candidates.filter(|(distance, _)| *distance <= edits).min()?;
    Some(candidate)
}

/// Edits (insert, delete, replace, swap neighbours) between two texts.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (
        left.chars().take(NAME_CHARS_MAX).collect(),
        right.chars().take(NAME_CHARS_MAX).collect(),
    );
    let mut rows = vec![vec![0; right.len() + 1]; left.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=left.len() {
        for j in 1..=right.len() {
            let replace = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let names = ["event", "state", "steps"];
        assert_eq!(nearest("evnet", names), Some("event"));
        assert_eq!(nearest("stats", names), Some("state"));
        assert_eq!(nearest("customer", names), None);
    }
}
