//! The limits of a plan, and how they are split over the partitions.

/// How much the plan may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub records: u64,
    pub bytes: u64,
}

impl Budget {
    pub fn covers(self, records: u64, bytes: u64) -> bool {
        records <= self.records && bytes <= self.bytes
    }

    pub fn less(self, records: u64, bytes: u64) -> Budget {
        let minus = |limit: u64, used: u64| {
            if limit == u64::MAX {
                limit
            } else {
                limit.saturating_sub(used)
            }
        };
        Budget {
            records: minus(self.records, records),
            bytes: minus(self.bytes, bytes),
        }
    }

    pub fn is_spent(self) -> bool {
        self.records == 0 || self.bytes == 0
    }
}

/// Splits `limit` in proportion to `waiting`; the remainder goes to those with the most waiting.
pub fn shares(waiting: &[u64], limit: u64) -> Vec<u64> {
    if limit == u64::MAX {
        return vec![u64::MAX; waiting.len()];
    }
    let total: u128 = waiting
        .iter()
        .map(|count| u128::from(*count))
        .sum::<u128>()
        .max(1);
    let share = |count: &u64| {
        u64::try_from(u128::from(limit) * u128::from(*count) / total).unwrap_or(u64::MAX)
    };
    let mut shares: Vec<u64> = waiting.iter().map(share).collect();
    let mut left = limit.saturating_sub(shares.iter().sum());
    let mut order: Vec<usize> = (0..waiting.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(waiting[*index]));
    for index in order.into_iter().filter(|index| waiting[*index] > 0) {
        if left == 0 {
            break;
        }
        shares[index] += 1;
        left -= 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn a_limit_is_split_in_proportion_and_nothing_is_lost_to_rounding() {
        assert_eq!(shares(&[100, 300], 40), [10, 30]);
        assert_eq!(shares(&[1, 1, 1], 2), [1, 1, 0]);
        assert_eq!(shares(&[0, 5], 1), [0, 1]);
        assert_eq!(shares(&[0, 0], 5), [0, 0]);
        assert_eq!(shares(&[7], u64::MAX), [u64::MAX]);
        assert_eq!(
            shares(&[u64::MAX / 2, u64::MAX / 2], u64::MAX - 1)
                .iter()
                .sum::<u64>(),
            u64::MAX - 1
        );
    }
}
