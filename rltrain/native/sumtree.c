/* A sum tree: leaves with a mass each, drawn in proportion to it. Belongs to one thread at a time; nothing is shared.
 *
 * Nodes have 8 children, one cache line of doubles. `sums` holds all levels one after the other, leaves first, each
 * filled up with zeros to whole lines; the last level is the root alone. `mins` holds the least positive leaf below
 * each inner node, in the places of `sums` less the leaves. A parent is always computed anew from its children, from
 * left to right, and never changed by a difference: the tree is a pure function of its leaves, so nothing drifts, and
 * a search that adds up the same children in the same order never runs past them but for rounding below.
 *
 * Depth d = log8(leaves): 7 for a million. */
#include "protocol.h"

#include <errno.h>
#include <math.h>

enum { WIDTH = 8, BLOCK = 64 };

static const double SMALLEST = 0x1p-500, LARGEST = 0x1p500; /* of a mass: sums of 2^64 of them stay finite */

static double *level_of(const rl_tree *tree, int64_t level)
{
    return tree->sums + tree->offsets[level];
}

static double *mins_of(const rl_tree *tree, int64_t level)
{
    return tree->mins + (tree->offsets[level] - tree->offsets[1]);
}

static void recompute(rl_tree *tree, int64_t level, int64_t node)
{
    const double *children = level_of(tree, level - 1) + node * WIDTH;
    const double *below = level > 1 ? mins_of(tree, level - 1) + node * WIDTH : children;
    double sum = 0, least = INFINITY;
    for (int i = 0; i < WIDTH; i++) {
        sum += children[i];
        if (children[i] > 0 && below[i] < least)
            least = below[i];
    }
    level_of(tree, level)[node] = sum;
    mins_of(tree, level)[node] = least;
}

/* Bring the ancestors of `count` leaves up to date, each level for all of them. O(count * d). */
static void repair(rl_tree *tree, const int64_t *leaves, int64_t count)
{
    int64_t reach = WIDTH;
    for (int64_t level = 1; level < tree->num_levels; level++, reach *= WIDTH) {
        int64_t previous = -1;
        for (int64_t i = 0; i < count; i++) {
            int64_t node = leaves[i] / reach;
            if (node != previous)
                recompute(tree, level, node);
            previous = node;
        }
    }
}

static int in_range(const rl_tree *tree, const int64_t *leaves, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (leaves[i] < 0 || leaves[i] >= tree->num_leaves)
            return 0;
    return 1;
}

/* leaf[leaves[i]] = masses[i]; of equal leaves the last counts. O(count * d). Returns -EINVAL, nothing changed, for a
 * leaf out of range and for a mass that is negative, too large or no number. */
int rl_tree_set(rl_tree *tree, const int64_t *leaves, const double *masses, int64_t count)
{
    if (!in_range(tree, leaves, count))
        return -EINVAL;
    for (int64_t i = 0; i < count; i++)
        if (!(masses[i] >= 0 && masses[i] <= LARGEST))
            return -EINVAL;
    for (int64_t i = 0; i < count; i++)
        tree->sums[leaves[i]] = masses[i];
    repair(tree, leaves, count);
    return 0;
}

/* Go one level down: from a node and what is left of the searched mass to the child that holds it. */
static int64_t descend(const double *children, double *mass)
{
    double prefix[WIDTH], sum = 0;
    int chosen = 0;
    for (int i = 0; i < WIDTH; i++) {
        prefix[i] = sum += children[i];
        chosen += prefix[i] <= *mass;
    }
    if (chosen == WIDTH) { /* rounding led past the end: the last child that holds anything */
        chosen = WIDTH - 1;
        while (chosen > 0 && !(children[chosen] > 0))
            chosen--;
    }
    if (chosen > 0)
        *mass -= prefix[chosen - 1];
    return chosen;
}

/* leaves[i] = the leaf that holds masses[i] of the total, counted from the left; what is below 0 or beyond the total
 * counts as the end it is next to. Never a leaf of mass 0 unless all are.
 * Blocks of queries go down level by level together, so that their cache misses overlap. O(count * d). */
void rl_tree_find(const rl_tree *tree, const double *masses, int64_t count, int64_t *leaves)
{
    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t num = count - first < BLOCK ? count - first : BLOCK;
        double left[BLOCK];
        for (int64_t i = 0; i < num; i++) {
            left[i] = masses[first + i] > 0 ? masses[first + i] : 0; /* no number counts as 0, too */
            leaves[first + i] = 0;
        }
        for (int64_t level = tree->num_levels - 2; level >= 0; level--) {
            const double *sums = level_of(tree, level);
            for (int64_t i = 0; i < num; i++) {
                int64_t node = leaves[first + i] * WIDTH;
                leaves[first + i] = node + descend(sums + node, &left[i]);
                if (level > 0)
                    __builtin_prefetch(level_of(tree, level - 1) + leaves[first + i] * WIDTH);
            }
        }
    }
}

/* SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). */
static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Draw `count` leaves, one from each of as many equal parts of the total, with noise that depends on (seed, draw, i)
 * alone, and weigh each by (mass / least mass)^-beta, least of all leaves or of those drawn: that is
 * (N P)^-beta over its largest. O(count * d). Returns -ENODATA when all masses are 0. */
int rl_tree_sample(const rl_tree *tree, const uint32_t *generations, uint64_t seed, uint64_t draw, int64_t count,
                   double beta, int over_all, double *masses, int64_t *leaves, uint32_t *drawn_generations,
                   float *weights, double *probabilities)
{
    double total = level_of(tree, tree->num_levels - 1)[0];
    if (!(total > 0))
        return -ENODATA;
    uint64_t key = mixed(mixed(seed + 0x9E3779B97F4A7C15u) + draw);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = mixed(key + (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u) >> 11;
        masses[i] = ((double)i + ((double)bits + 0.5) * 0x1p-53) / (double)count * total;
    }
    rl_tree_find(tree, masses, count, leaves);
    for (int64_t i = 0; i < count; i++)
        __builtin_prefetch(generations + leaves[i]);
    double least = INFINITY;
    for (int64_t i = 0; i < count; i++) {
        masses[i] = tree->sums[leaves[i]];
        drawn_generations[i] = generations[leaves[i]];
        if (masses[i] < least)
            least = masses[i];
    }
    if (over_all)
        least = mins_of(tree, tree->num_levels - 1)[0];
    for (int64_t i = 0; i < count; i++) {
        probabilities[i] = masses[i] / total;
        weights[i] = masses[i] == least || beta == 0 ? 1.0f : (float)pow(masses[i] / least, -beta);
    }
    return 0;
}

/* Give drawn leaves the mass (|error| + eps)^alpha. Skipped and counted: leaves whose generation is another by now or
 * that hold nothing (skipped[0]), errors that are no numbers (skipped[1]). `largest` grows to the largest mass given.
 * `kept` has room for `count`. O(count * d). Returns how many were set, or -EINVAL, nothing changed, out of range. */
int64_t rl_tree_update(rl_tree *tree, const uint32_t *generations, const int64_t *leaves,
                       const uint32_t *drawn_generations, const float *errors, int64_t count, double alpha, double eps,
                       int64_t *skipped, double *largest, int64_t *kept)
{
    if (!in_range(tree, leaves, count))
        return -EINVAL;
    for (int64_t i = 0; i < count; i++) { /* a gradient step has been made since the draw: nothing is in the caches */
        __builtin_prefetch(generations + leaves[i]);
        __builtin_prefetch(tree->sums + leaves[i], 1);
        __builtin_prefetch(level_of(tree, 1) + leaves[i] / WIDTH, 1);
        __builtin_prefetch(mins_of(tree, 1) + leaves[i] / WIDTH, 1);
    }
    int64_t num_kept = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t leaf = leaves[i];
        if (generations[leaf] != drawn_generations[i] || !(tree->sums[leaf] > 0)) {
            skipped[0]++;
            continue;
        }
        if (!isfinite(errors[i])) {
            skipped[1]++;
            continue;
        }
        double mass = pow(fabs((double)errors[i]) + eps, alpha);
        mass = mass < SMALLEST ? SMALLEST : mass > LARGEST ? LARGEST : mass;
        if (mass > *largest)
            *largest = mass;
        tree->sums[leaf] = mass;
        kept[num_kept++] = leaf;
    }
    repair(tree, kept, num_kept);
    return num_kept;
}

/* Compute all inner nodes. O(leaves). */
void rl_tree_rebuild(rl_tree *tree)
{
    for (int64_t level = 1; level < tree->num_levels; level++) {
        int64_t end = level + 1 < tree->num_levels ? tree->offsets[level + 1] : tree->offsets[level] + 1;
        int64_t below = (tree->offsets[level] - tree->offsets[level - 1]) / WIDTH;
        for (int64_t node = 0; node < end - tree->offsets[level] && node < below; node++)
            recompute(tree, level, node);
    }
}
