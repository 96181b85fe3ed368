use super::*;

#[derive(Debug, Clone, Copy)]
struct One(u64);

impl Entry for One {
    fn number(&self) -> u64 {
        self.0
    }
}

impl<E> Node<E> {
    fn edges(&self) -> impl Iterator<Item = &Edge<E>> {
        self.levels.values().chain(&self.any).map(Box::as_ref)
    }

    fn count(&self) -> usize {
        1 + self.edges().map(|edge| edge.node.count()).sum::<usize>()
    }
}

fn nodes(index: &Index<One>) -> usize {
    index.root.count() - 1
}

/// The levels of `number`, one for each bit, with `+` for those that are set; and a last level of its own.
fn branching(number: u64, levels: u32) -> String {
    let level = |bit: u32| {
        if number >> (bit % 10) & 1 == 1 {
            "+"
        } else {
            "l"
        }
    };
    let levels: Vec<&str> = (0..levels).map(level).collect();
    format!("{}/end{number}", levels.join("/"))
}

#[test]
fn a_filter_takes_a_node_or_two_whatever_its_levels_and_removing_it_gives_them_back() {
    let mut index = Index::default();
    // Number 0 has no wildcard, and is not in the tree.
    let filters: Vec<String> = (1..=1000).map(|number| branching(number, 60)).collect();
    for (filter, number) in filters.iter().zip(1..) {
        assert!(index.entries_of(filter).insert(One(number)));
        assert!(!index.entries_of(filter).insert(One(number)), "{filter}");
    }
    assert!(nodes(&index) < 2 * filters.len(), "{} nodes", nodes(&index));
    for (filter, number) in filters.iter().zip(1..).skip(1) {
        assert!(index.remove(filter, |entries| entries.remove(number)));
    }
    assert_eq!(nodes(&index), 1, "the edges are joined again");
    assert!(index.remove(&filters[0], |entries| entries.remove(1)));
    assert!(index.is_empty());
}

#[test]
fn the_work_of_a_match_is_the_nodes_that_it_visits() {
    let mut index = Index::default();
    let mut work_of = |count: u64| {
        for number in 0..count {
            let filter = branching(number, 60);
            index.entries_of(&filter).insert(One(number));
        }
        let topic = format!("{}end", "l/".repeat(60));
        index.for_each_match(&topic, &mut |_| {})
    };
    assert!(work_of(1) <= 2);
    let many = work_of(1000);
    assert!(
        (2000..8000).contains(&many),
        "{many} nodes, with the levels of their edges"
    );
}

#[test]
fn empty_levels_are_levels() {
    let filters = [
        "+//", "+/", "+", "+//a", "+//#", "+/#", "/+", "//+", "+//+", "+///",
    ];
    let mut index = Index::default();
    for (filter, number) in filters.iter().zip(0..) {
        index.entries_of(filter).insert(One(number));
    }
    for topic in ["x//", "x/", "x", "/", "//", "x//a", "/a", "///", "x///"] {
        let mut found = Vec::new();
        index.for_each_match(topic, &mut |entries| {
            found.extend(entries.iter().map(|one| filters[one.0 as usize]));
        });
        found.sort_unstable();
        let mut expected: Vec<&str> = filters
            .into_iter()
            .filter(|filter| headwater_mqtt::filter_matches(filter, topic))
            .collect();
        expected.sort_unstable();
        assert_eq!(found, expected, "{topic:?}");
    }
    for (filter, number) in filters.iter().zip(0..) {
        assert!(
            index.remove(filter, |entries| entries.remove(number)),
            "{filter}"
        );
    }
    assert!(index.is_empty());
}

/// Whoever publishes chooses how long a level is: it must not be read anew at each node.
#[test]
fn a_long_level_of_a_topic_costs_little_more_than_a_short_one() {
    const BITS: u32 = 11;
    let mut index = Index::default();
    for number in 0..1 << BITS {
        let levels: Vec<&str> = (0..BITS)
            .map(|bit| if number >> bit & 1 == 1 { "+" } else { "l" })
            .collect();
        for (end, place) in [("x", 0), ("y/+", 1)] {
            let entries = index.entries_of(&format!("{}/{end}", levels.join("/")));
            entries.insert(One(2 * number + place));
        }
    }
    let time_of = |last: &str| {
        let topic = format!("{}{last}", "l/".repeat(BITS as usize));
        let one = || {
            let start = std::time::Instant::now();
            let visited = index.for_each_match(&topic, &mut |_| {});
            assert!(visited > 1 << BITS, "{visited}");
            start.elapsed()
        };
        (0..20).map(|_| one()).min().expect("there are some")
    };
    let (short, long) = (time_of("z"), time_of(&"z".repeat(60_000)));
    assert!(long < 10 * short, "{long:?}, and {short:?} for a short one");
}
