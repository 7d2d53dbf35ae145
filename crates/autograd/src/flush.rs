//! Flushing: from queued values to a graph, a plan, a submission, and computed values.
//!
//! A final flush computes only what outlives the pass. A flush in the middle of a pass also keeps every
//! value that it stored, so that nothing expensive is computed twice, unless it is told what is needed later; it donates
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wgrad_graph::{
    Args, BufferId, Error, ErrorKind, Fast, Home, HostTensor, LeafArg, LeafKind, Op, Options, Out, Result,
    Root, Stage, Ticket, Val, bail,
};

use crate::cut::{Cut, cut, needed};
use crate::memo::Asked;
use crate::pass::OpenPass;
use crate::plans::{PlanKey, Ready};
use crate::record;
use crate::repeat::flushed_parts;
use crate::state::{At, FastMap, Lease, Pool, Source, Standing, State, Update, ValueKey};
use crate::tensor::{PERSISTENT, Tensor};

/// What one submission made.
struct Made {
    /// What kind of leaf each leaf was.
    kinds: Vec<LeafKind>,
    /// For each root, its buffer.
    roots: Vec<Arc<Lease>>,
    /// Other stored values: the graph's value and its buffer.
    kept: Vec<(Val, Arc<Lease>)>,
    /// The plan that ran.
    ready: Ready,
}

/// What the end of a pass computes: the numbers of the updates that are of use, then each goal, with its update.
pub(crate) struct Goals {
    pub(crate) updates: Vec<usize>,
    pub(crate) goals: Vec<(ValueKey, Option<usize>)>,
}

/// The roots of a final flush.
pub(crate) struct Rooted {
    pub(crate) roots: Vec<Root>,
    /// For each root, the version of an owned value whose place the result may take.
    pub(crate) places: Vec<Option<Arc<Lease>>>,
    /// Where each goal ends.
    homes: Vec<GoalHome>,
    /// For each goal, its buffer if it was computed before.
    before: Vec<Option<(Arc<Lease>, Ticket)>>,
}

/// What a leaf of a cut is bound to.
#[derive(Clone)]
pub(crate) enum Bind {
    /// A buffer.
    Lease(Arc<Lease>),
    /// Bytes that travel with the submission.
    Host(HostTensor),
}

/// What a final flush did, in terms that hold for the next pass of the same structure.
pub(crate) struct Recording {
    /// The plan, if there was anything to compute.
    pub(crate) ready: Option<Ready>,
    /// The pool's node of each leaf.
    pub(crate) leaves: Vec<u32>,
    /// The pool's node of each number.
    pub(crate) numbers: Vec<u32>,
    /// The updates that were committed, by their place in the pool's list.
    pub(crate) updates: Vec<usize>,
    /// What becomes of each of these and of each deferred value, in that order.
    pub(crate) homes: Vec<GoalHome>,
}

/// Where a goal of a final flush ended.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum GoalHome {
    /// It is this root of the plan.
    Root(usize),
    /// It was computed before.
    Before,
}

impl State {
    /// A new buffer with `data` in storage dtype.
    pub(crate) fn upload(&mut self, data: &HostTensor) -> Result<Arc<Lease>> {
        self.alive()?;
        let caps = self.backend.caps();
        let stored = data.cast(caps.storage(data.dtype()));
        let bytes = caps.value_bytes(data.shape().elems(), data.dtype());
        self.room(false).take(bytes)?;
        let lease = Lease::new(&self.backend, bytes);
        let _upload = self.profiling.stage(Stage::Upload);
        self.profiling.tell(|p| p.uploaded(1, stored.bytes().len() as u64));
        let written =
            lease.and_then(|lease| self.backend.write_shared(lease.id, stored.bytes()).map(|()| lease));
        written.inspect_err(|error| self.note(error))
    }

    /// The buffer of a constant table, which a context uploads once.
    fn table(&mut self, name: &'static str, data: &HostTensor) -> Result<Arc<Lease>> {
        if let Some((lease, _)) = self.tables.get(name) {
            return Ok(Arc::clone(lease));
        }
        let lease = self.upload(data)?;
        let out = Out { shape: data.shape(), dtype: data.dtype() };
        self.tables.insert(name, (Arc::clone(&lease), out));
        Ok(lease)
    }

    /// The computed buffer of a handle, computing it if need be.
    pub(crate) fn computed(&mut self, tensor: &Tensor, at: At) -> Result<(Arc<Lease>, Ticket, Out)> {
        self.alive()?;
        let look = record::look(self, tensor)?;
        match look.standing {
            Standing::Computed(lease, ticket) => return Ok((lease, ticket, look.out)),
            Standing::Poisoned(error) => return Err(error),
            Standing::Queued if tensor.pool == PERSISTENT => {
                bail!(Stale, "read", "the value is made by a pass that has not ended or was discarded")
            }
            Standing::Queued => {}
        }
        if record::pool(self, tensor)?.captured {
            let rule = "a value is read inside a captured step; return it from the step instead";
            return Err(Error::new(ErrorKind::Argument, "read", rule)
                .at(at)
                .operand("made", Some(tensor.at)));
        }
        self.flush(tensor.pool, &[tensor.value_key()], true)?;
        match record::look(self, tensor)?.standing {
            Standing::Computed(lease, ticket) => Ok((lease, ticket, look.out)),
            Standing::Poisoned(error) => Err(error),
            Standing::Queued => unreachable!("a flush computes or poisons what it was asked for"),
        }
    }

    /// Flushes all unread values of a pass that has recorded more than its budget of operations; whether it has.
    pub(crate) fn spend(&mut self, pass: OpenPass) -> Result<bool> {
        let node_budget = self.config.node_budget;
        let pool = record::current(self, pass)?;
        if pool.captured || pool.nodes.len() - pool.flushed < node_budget {
            return Ok(false);
        }
        let mut used = vec![false; pool.nodes.len()];
        for node in &pool.nodes {
            node.inputs.iter().for_each(|k| used[pool.values[*k].node as usize] = true);
        }
        let idle = |i: &usize| !used[*i] && !matches!(pool.nodes[*i].op, Op::Input | Op::Scalar);
        let mut goals: Vec<ValueKey> = (pool.flushed..pool.nodes.len())
            .filter(idle)
            .flat_map(|i| pool.nodes[i].outs.iter().map(|o| o.key))
            .collect();
        // What depends on a poisoned value has failed already, and must not take others along.
        if needed(pool, &goals).is_err() {
            goals.retain(|key| needed(pool, &[*key]).is_ok());
        }
        pool.flushed = pool.nodes.len();
        // A failure belongs to the values that failed: whoever reads one of them hears of it.
        if let Err(error) = self.flush(pass.pool, &goals, true) {
            tracing::warn!(target: "wgrad::pass", %error, "a flush on budget failed");
        }
        Ok(true)
    }

    /// Computes `goals` in the middle of a pass; with `keep` all else that is stored on the way stays too.
    pub(crate) fn flush(&mut self, index: u32, goals: &[ValueKey], keep: bool) -> Result<()> {
        let mut pool = self.pools[index as usize].pool.take().expect("the caller found the pool open");
        self.poison(&mut pool);
        let result = {
            let _plan = self.profiling.stage(Stage::Plan);
            self.flush_pool(&mut pool, goals, keep)
        };
        self.pools[index as usize].pool = Some(pool);
        result
    }

    /// Poisons the values of submissions that failed on the device.
    fn poison(&self, pool: &mut Pool) {
        if self.failures.is_empty() {
            return;
        }
        for out in pool.nodes.iter_mut().flat_map(|node| &mut node.outs) {
            if let Standing::Computed(_, ticket) = out.standing
                && let Some(error) = self.failed(ticket)
            {
                out.standing = Standing::Poisoned(error.clone());
            }
        }
    }

    fn flush_pool(&mut self, pool: &mut Pool, goals: &[ValueKey], keep: bool) -> Result<()> {
        // The end of the pass finds values computed, of which its tape does not tell.
        pool.tape.whole = false;
        let result = self.sources_first(pool, goals).and_then(|()| {
            let mut cut = cut(pool, goals)?;
            let mut roots: Vec<Root> = Vec::new();
            for key in goals {
                let v = pool.values[*key];
                if let Some(val) = cut.vals.get(&(v.node, v.out))
                    && matches!(pool.out(*key).standing, Standing::Queued)
                    && !roots.iter().any(|r| r.val == *val)
                {
                    roots.push(Root { val: *val, into: None });
                }
            }
            if roots.is_empty() {
                return Ok(());
            }
            let vals: Vec<Val> = roots.iter().map(|r| r.val).collect();
            let made = self.submit(pool, &mut cut, roots, None, keep)?;
            let back: FastMap<Val, (u32, u32)> = cut.vals.iter().map(|(k, v)| (*v, *k)).collect();
            for (val, lease) in vals.into_iter().zip(made.roots).chain(made.kept) {
                // An output that was computed before its node had to run again for another stays what it was.
                let Some(&(node, out)) = back.get(&val) else { continue };
                pool.nodes[node as usize].outs[out as usize].standing =
                    Standing::Computed(lease, self.newest);
            }
            Ok(())
        });
        if let Err(error) = &result {
            for key in goals {
                let out = pool.out_mut(*key);
                if matches!(out.standing, Standing::Queued) {
                    out.standing = Standing::Poisoned(error.clone());
                }
            }
        }
        result
    }

    /// Uploads the tables and computes the values of passes around that `goals` depend on.
    pub(crate) fn sources_first(&mut self, pool: &mut Pool, goals: &[ValueKey]) -> Result<()> {
        if pool.outer.is_empty() && pool.tables.is_empty() {
            return Ok(());
        }
        for node in needed(pool, goals)? {
            let (outer, key) = match &pool.nodes[node as usize].source {
                Source::Outer { pass, key } => (*pass, *key),
                Source::Table(name, data) => {
                    let lease = self.table(name, data)?;
                    pool.nodes[node as usize].source = Source::Lease(lease);
                    continue;
                }
                _ => continue,
            };
            if self.pool(outer.pool, outer.generation).is_none() {
                let at = pool.nodes[node as usize].at;
                let rule = "a value of a pass around is needed, but that pass has ended before this one";
                return Err(Error::new(ErrorKind::Stale, "flush", rule).operand("made", Some(at)));
            }
            self.flush(outer.pool, &[key], true)?;
            let outer = self.pool(outer.pool, outer.generation).expect("it was just found");
            let lease = match (&outer.node(key).source, &outer.out(key).standing) {
                (Source::Lease(lease) | Source::Placed(lease), _) | (_, Standing::Computed(lease, _)) => {
                    Arc::clone(lease)
                }
                (_, Standing::Poisoned(error)) => return Err(error.clone()),
                (_, Standing::Queued) => bail!(Stale, "flush", "a value of a pass around was not computed"),
            };
            pool.nodes[node as usize].source = Source::Lease(lease);
        }
        Ok(())
    }

    /// Plans and submits a cut, whose graph it takes; with `keep` all values that it stores stay. `places`, given in a final flush, tells for each root
    /// the buffer of the owned version whose place the result may take.
    fn submit(
        &mut self,
        pool: &mut Pool,
        cut: &mut Cut,
        roots: Vec<Root>,
        places: Option<&[Option<Arc<Lease>>]>,
        keep: bool,
    ) -> Result<Made> {
        let count = roots.len();
        let (mut key, binds) = self.key(pool, cut, roots, places);
        key.options.keep = keep;
        let plain_kinds = key.leaves.iter().map(|(_, kind)| *kind).collect();
        let room = self.room(key.within_bytes.is_some());
        let looking = self.profiling.stage(Stage::Plan);
        let ready = self.plans.ready(&self.backend, key, &room, &cut.phases, &self.profiling);
        let ready = ready.map(|cached| cached.ready.clone());
        drop(looking);
        let ready = ready.inspect_err(|error| self.note(error))?;
        self.workspace_bytes = self.workspace_bytes.max(ready.plan.workspace_bytes);
        let numbers: Vec<f64> = cut.numbers.iter().map(|n| pool.take_number(*n)).collect();
        let mut leases = self.run(&ready, &binds, &numbers)?;
        for (node, _) in cut.vals.keys().filter(|(_, out)| *out == 0) {
            let node = &mut pool.nodes[*node as usize];
            let computes = !matches!(node.op, Op::Input | Op::Scalar)
                && !matches!(node.outs[0].standing, Standing::Computed(..));
            let ran = node.ran;
            node.ran |= computes || node.op == Op::Input;
            self.recomputed += u64::from(computes && ran);
        }
        let others = leases.split_off(count);
        let kept = ready.plan.outputs[count..].iter().map(|o| o.val).zip(others).collect();
        Ok(Made { kinds: plain_kinds, roots: leases, kept, ready })
    }

    /// What the plan of a cut depends on, with the cut's graph, and what its leaves are bound to.
    pub(crate) fn key(
        &self,
        pool: &Pool,
        cut: &mut Cut,
        mut roots: Vec<Root>,
        places: Option<&[Option<Arc<Lease>>]>,
    ) -> (PlanKey, Vec<Bind>) {
        let binds: Vec<Bind> = cut.leaves.iter().map(|(_, node, out)| bind(pool, *node, *out)).collect();
        let mut kinds = Vec::with_capacity(binds.len());
        // For the buffer of each place, the first root that may take it.
        let mut takers: FastMap<BufferId, usize> = FastMap::default();
        for (root, place) in places.unwrap_or_default().iter().enumerate() {
            if let Some(place) = place {
                takers.entry(place.id).or_insert(root);
            }
        }
        for (i, ((id, _, _), bind)) in cut.leaves.iter().zip(&binds).enumerate() {
            let kind = match bind {
                Bind::Host(_) => LeafKind::Upload,
                Bind::Lease(lease) => {
                    // The owner, the leaf, the place and the bind: nobody else can reach this version.
                    match takers.get(&lease.id).copied() {
                        Some(root) if Arc::strong_count(lease) == 4 => {
                            roots[root].into = Some(i as u32);
                            LeafKind::Donated
                        }
                        _ => LeafKind::Buffer,
                    }
                }
            };
            kinds.push((*id, kind));
        }
        let options = Options { fuse: self.config.fuse, keep: false };
        let within_bytes = pool.within_bytes.filter(|_| places.is_some());
        let graph = std::mem::take(&mut cut.graph);
        (PlanKey { graph, roots, leaves: kinds, options, within_bytes }, binds)
    }

    /// Submits a plan that is ready; one buffer an output.
    pub(crate) fn run(&mut self, ready: &Ready, binds: &[Bind], numbers: &[f64]) -> Result<Vec<Arc<Lease>>> {
        let _encode = self.profiling.stage(Stage::Encode);
        let Ready { plan, prepared, bounds, phases, .. } = ready;
        for (scalar, max, node) in bounds {
            let (start, node) = (numbers[*scalar], plan.graph.node(*node));
            if !(0.0..=*max as f64).contains(&start) {
                let rule = format!("start {start} is not between 0 and {max}, the last that fits");
                let error = Error::new(ErrorKind::Argument, node.op.name(), rule);
                return Err(if let Some(at) = node.at { error.at(at) } else { error });
            }
        }
        self.alive()?;
        self.room(false).take(plan.fresh_bytes())?;
        let caps = self.backend.caps();
        let upload = self.profiling.stage(Stage::Upload);
        let stored: Vec<Option<HostTensor>> = binds
            .iter()
            .map(
                |b| if let Bind::Host(data) = b { Some(data.cast(caps.storage(data.dtype()))) } else { None },
            )
            .collect();
        let mut leaves: Vec<LeafArg<'_>> = Vec::with_capacity(binds.len());
        for (bind, stored) in binds.iter().zip(&stored) {
            leaves.push(match (bind, stored) {
                (Bind::Lease(lease), _) => LeafArg::Buffer(lease.id),
                (Bind::Host(data), None) => LeafArg::Host(data.bytes()),
                (Bind::Host(_), Some(stored)) => LeafArg::Host(stored.bytes()),
            });
        }
        drop(upload);
        let allocate = self.profiling.stage(Stage::Allocate);
        let mut leases = Vec::with_capacity(plan.outputs.len());
        for output in &plan.outputs {
            leases.push(match output.home {
                Home::New { bytes } => {
                    Lease::new(&self.backend, bytes).inspect_err(|error| self.note(error))?
                }
                Home::InPlace(leaf) => match &binds[leaf as usize] {
                    Bind::Lease(lease) => Arc::clone(lease),
                    Bind::Host(_) => unreachable!("host bytes are never donated"),
                },
            });
        }
        let outputs: Vec<BufferId> = leases.iter().map(|l| l.id).collect();
        drop(allocate);
        self.profiling.tell(|profile| {
            profile.submitted(plan, phases);
            let bytes =
                leaves.iter().map(|leaf| if let LeafArg::Host(bytes) = leaf { bytes.len() } else { 0 });
            let bytes = bytes.sum::<usize>() as u64;
            profile.uploaded(u64::from(bytes > 0), bytes);
        });
        let args =
            Args { leaves: &leaves, scalars: numbers, outputs: &outputs, watch: self.profiling.watch() };
        let ticket = self.backend.submit(prepared, args).inspect_err(|error| self.note(error))?;
        self.newest = ticket;
        self.flight.push_back(ticket);
        Ok(leases)
    }

    /// The final flush of a pass: computes what outlives it, and commits, unless `check` objects.
    pub(crate) fn finish(
        &mut self,
        index: u32,
        check: impl FnOnce(&Pool, &Cut) -> Result<()>,
    ) -> Result<Recording> {
        let mut pool = self.pools[index as usize].pool.take().expect("the pass is open");
        self.poison(&mut pool);
        let result = self.finish_pool(&mut pool, check);
        if let Err(error) = &result {
            pool.deferred.drain(..).for_each(|(_, cell)| cell.lose(error.clone()));
        }
        self.pools[index as usize].pool = Some(pool);
        result
    }

    fn finish_pool(
        &mut self,
        pool: &mut Pool,
        check: impl FnOnce(&Pool, &Cut) -> Result<()>,
    ) -> Result<Recording> {
        self.alive()?;
        for update in &pool.updates {
            if let Some(owned) = self.owned.get(update.owned)
                && owned.version != update.base
            {
                let rule = format!(
                    "{}: another pass has set version {} since this pass began its own from version {}",
                    owned.name, owned.version, update.base
                );
                return Err(Error::new(ErrorKind::Stale, "set", rule).at(update.at));
            }
        }
        let Goals { updates, goals } = self.goals(pool);
        let keys: Vec<ValueKey> = goals.iter().map(|(key, _)| *key).collect();
        let asked = Asked { goals: &keys, within_bytes: pool.within_bytes };
        let simple = pool.tape.whole
            && !pool.captured
            && self.failures.is_empty()
            && self.backend.caps().allows(Fast::EqualPasses);
        if simple && let Some(recording) = self.repeat_flush(pool, asked, &updates)? {
            return Ok(recording);
        }
        self.sources_first(pool, &keys)?;
        let mut cut = {
            let _plan = self.profiling.stage(Stage::Plan);
            cut(pool, &keys)?
        };
        check(pool, &cut)?;
        let Rooted { roots, places, homes, before } = self.rooted(pool, &cut, &goals);
        let made = match roots.is_empty() {
            true => None,
            false => Some(self.submit(pool, &mut cut, roots, Some(&places), false)?),
        };
        drop(places);
        let lease = |(home, before): (&GoalHome, Option<(Arc<Lease>, Ticket)>)| match (home, &made) {
            (GoalHome::Root(root), Some(made)) => (Arc::clone(&made.roots[*root]), self.newest),
            _ => before.expect("a goal without a root was computed before"),
        };
        let leases: Vec<(Arc<Lease>, Ticket)> = homes.iter().zip(before).map(lease).collect();
        let leaves = cut.leaves.iter().map(|(_, node, _)| *node).collect();
        if simple && let Some(made) = &made {
            let (kinds, cut_leaves) = (&made.kinds, &cut.leaves);
            let numbers = &cut.numbers;
            pool.remember(asked, |pool| {
                flushed_parts(pool, &updates, cut_leaves, kinds, &homes, &made.ready, numbers)
            });
        }
        self.commit_goals(pool, &updates, &leases);
        Ok(Recording { ready: made.map(|m| m.ready), leaves, numbers: cut.numbers, updates, homes })
    }

    /// What the end of a pass computes.
    pub(crate) fn goals(&self, pool: &Pool) -> Goals {
        // Only the last version of each owned value that still exists is of use.
        let of_use = |(i, u): (usize, &Update)| {
            let last = pool.newest.get(&u.owned) == Some(&i);
            (last && self.owned.contains_key(u.owned)).then_some(i)
        };
        let updates: Vec<usize> = pool.updates.iter().enumerate().filter_map(of_use).collect();
        let goals: Vec<(ValueKey, Option<usize>)> = (updates.iter())
            .map(|i| (pool.updates[*i].value, Some(*i)))
            .chain(pool.deferred.iter().map(|(key, _)| (*key, None)))
            .collect();
        Goals { updates, goals }
    }

    /// The roots of a cut that computes `goals`.
    pub(crate) fn rooted(&self, pool: &Pool, cut: &Cut, goals: &[(ValueKey, Option<usize>)]) -> Rooted {
        let mut roots: Vec<Root> = Vec::new();
        let mut places: Vec<Option<Arc<Lease>>> = Vec::new();
        let mut root_of: FastMap<Val, usize> = FastMap::default();
        let mut homes: Vec<GoalHome> = Vec::new();
        // Held from here on, so that nothing takes the place of a version that another value becomes.
        let mut before: Vec<Option<(Arc<Lease>, Ticket)>> = Vec::new();
        for (key, update) in goals {
            let v = pool.values[*key];
            before.push(leaf_lease(pool, v.node, v.out));
            if before.last().is_some_and(Option::is_some) {
                homes.push(GoalHome::Before);
                continue;
            }
            let val = cut.vals[&(v.node, v.out)];
            let root = *root_of.entry(val).or_insert_with(|| {
                roots.push(Root { val, into: None });
                places.push(update.and_then(|u| self.owned[pool.updates[u].owned].lease.clone()));
                roots.len() - 1
            });
            homes.push(GoalHome::Root(root));
        }
        Rooted { roots, places, homes, before }
    }

    /// Commits the new versions and the deferred values of a pass: a buffer for each, and what made it.
    pub(crate) fn commit_goals(
        &mut self,
        pool: &mut Pool,
        updates: &[usize],
        leases: &[(Arc<Lease>, Ticket)],
    ) {
        let (new, deferred) = leases.split_at(updates.len());
        for (i, (lease, _)) in updates.iter().zip(new) {
            let Update { owned, version, .. } = pool.updates[*i];
            let owned = &mut self.owned[owned];
            (owned.lease, owned.version) = (Some(Arc::clone(lease)), version);
        }
        for ((key, cell), (lease, ticket)) in pool.deferred.iter().zip(deferred) {
            cell.computed(Arc::clone(lease), pool.out(*key).out, *ticket);
            self.deferred.push(Arc::downgrade(cell));
        }
        self.deferred.retain(|cell| cell.strong_count() > 0);
        self.commit_counts(&pool.counts, pool.step);
        pool.deferred.clear();
    }

    /// Counts the committed pass with number `step`.
    pub(crate) fn commit_counts(&mut self, counts: &[(Arc<AtomicU64>, u64)], step: u64) {
        for (counter, n) in counts {
            counter.fetch_add(*n, Ordering::AcqRel);
        }
        self.committed += 1;
        self.profiling.tell(wgrad_profile::Profile::step);
        self.step = self.step.max(step + 1);
    }
}

/// What a leaf of a pool is bound to.
pub(crate) fn bind(pool: &Pool, node: u32, out: u32) -> Bind {
    match &pool.nodes[node as usize].source {
        Source::Host(data) => Bind::Host(data.clone()),
        _ => Bind::Lease(leaf_lease(pool, node, out).expect("a leaf is a buffer or host bytes").0),
    }
}

/// The buffer of a pool's leaf or computed value, and the submission that filled it.
pub(crate) fn leaf_lease(pool: &Pool, node: u32, out: u32) -> Option<(Arc<Lease>, Ticket)> {
    let node = &pool.nodes[node as usize];
    match (&node.source, &node.outs[out as usize].standing) {
        (Source::Lease(lease) | Source::Placed(lease), _) => Some((Arc::clone(lease), Ticket(0))),
        (_, Standing::Computed(lease, ticket)) => Some((Arc::clone(lease), *ticket)),
        _ => None,
    }
}
