//! A weighted choice between values, the same in every run: message n of a mix always gets the same value.

/// Values in proportion to their weights, spread evenly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix<T> {
    turns: Vec<T>,
}

/// Largest sum of the weights of a mix, which is the length of its table.
pub(crate) const WEIGHTS_MAX: u32 = 10_000;

impl<T: Copy> Mix<T> {
    pub fn one(value: T) -> Self {
        Self { turns: vec![value] }
    }

    /// `None` when all weights are zero or their sum is over [`WEIGHTS_MAX`].
    pub fn new(weighted: &[(T, u32)]) -> Option<Self> {
        let total: u32 = weighted
            .iter()
            .try_fold(0_u32, |sum, (_, weight)| sum.checked_add(*weight))?;
        if total == 0 || total > WEIGHTS_MAX {
            return None;
        }
        // Each turn goes to the value that is furthest behind its share.
        let mut owed = vec![0_i64; weighted.len()];
        let turns = (0..total).map(|_| {
            for (owed, (_, weight)) in owed.iter_mut().zip(weighted) {
                *owed += i64::from(*weight);
            }
            let next =
                (0..owed.len()).max_by_key(|place| (owed[*place], std::cmp::Reverse(*place)));
            let next = next.unwrap_or(0);
            owed[next] -= i64::from(total);
            weighted[next].0
        });
        Some(Self {
            turns: turns.collect(),
        })
    }

    #[inline]
    pub fn pick(&self, number: u64) -> T {
        self.turns[(number % self.turns.len() as u64) as usize]
    }

    pub fn values(&self) -> impl Iterator<Item = T> + '_ {
        self.turns.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proportions_are_exact_and_spread() {
        let mix = Mix::new(&[('a', 6), ('b', 3), ('c', 1)]).expect("weights are given");
        let drawn: Vec<char> = (0..20).map(|n| mix.pick(n)).collect();
        for (value, count) in [('a', 12), ('b', 6), ('c', 2)] {
            assert_eq!(drawn.iter().filter(|one| **one == value).count(), count);
        }
        assert!(!drawn.windows(3).any(|three| three == ['b', 'b', 'b']));
    }

    #[test]
    fn a_mix_needs_a_weight_and_is_bounded() {
        assert_eq!(Mix::new(&[(1, 0)]), None);
        assert_eq!(Mix::new(&[(1, WEIGHTS_MAX + 1)]), None);
        assert_eq!(Mix::new(&[(1, u32::MAX), (2, u32::MAX)]), None);
    }
}
