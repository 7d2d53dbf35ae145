//! The devices on which tests run.

use std::sync::{Arc, OnceLock};

use wgrad_autograd::{Context, ContextOptions};
use wgrad_cpu::{Cpu, Oracle};
use wgrad_graph::{Backend, Caps, DeviceKind, Off};
use wgrad_wgpu::{AdapterInfo, Gpu};

use crate::engine::Recorder;

/// What a subject is opened from.
enum Origin {
    Cpu,
    Oracle,
    Adapter(Box<AdapterInfo>),
}

/// A device under test.
pub(crate) struct Subject {
    origin: Origin,
    tag: String,
    backend: OnceLock<Arc<dyn Backend>>,
}

impl Subject {
    fn new(origin: Origin) -> Subject {
        let tag = match &origin {
            Origin::Cpu => "cpu".to_owned(),
            Origin::Oracle => "oracle".to_owned(),
            Origin::Adapter(info) => {
                let word = info.name.split([' ', '(']).next().unwrap_or("adapter");
                word.to_lowercase()
            }
        };
        Subject { origin, tag, backend: OnceLock::new() }
    }

    /// A short name for test names: `cpu`, `oracle`, or a word of the adapter's name, and which one of several that
    /// have the same.
    pub(crate) fn tag(&self) -> String {
        self.tag.clone()
    }

    /// A device of its own, shared with no other test: for tests that count.
    pub(crate) fn fresh(&self) -> Arc<dyn Backend> {
        match &self.origin {
            Origin::Cpu => Arc::new(Cpu::new()),
            Origin::Oracle => Arc::new(Oracle::new()),
            Origin::Adapter(info) => Arc::new(Gpu::open(info).expect("the adapter was listed")),
        }
    }

    /// As [`Subject::fresh`], for what Vulkan devices alone tell; `None` for the CPU.
    pub(crate) fn fresh_gpu(&self) -> Option<Arc<Gpu>> {
        let Origin::Adapter(info) = &self.origin else { return None };
        Some(Arc::new(Gpu::open(info).expect("the adapter was listed")))
    }

    /// As [`Subject::fresh`], without some fast paths.
    pub(crate) fn without(&self, off: Off) -> Arc<dyn Backend> {
        match &self.origin {
            Origin::Cpu => Arc::new(Cpu::new().without(off)),
            Origin::Oracle => self.fresh(),
            Origin::Adapter(_) => self.lowered(|caps| caps.off = off),
        }
    }

    /// As [`Subject::fresh`], on lowered limits.
    pub(crate) fn lowered(&self, lower: impl FnOnce(&mut Caps)) -> Arc<dyn Backend> {
        match &self.origin {
            Origin::Adapter(info) => Arc::new(Gpu::open_with(info, lower).expect("limits are lowered")),
            Origin::Cpu | Origin::Oracle => Recorder::lowered(self.fresh(), lower),
        }
    }

    /// The device that tests share, so that kernels are compiled once.
    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(self.backend.get_or_init(|| self.fresh()))
    }

    /// A new context on the shared device.
    pub(crate) fn context(&self) -> Context {
        Context::new(self.backend()).expect("a context opens")
    }

    /// A new context on the shared device, with options.
    pub(crate) fn context_with(&self, options: ContextOptions) -> Context {
        Context::with(self.backend(), options).expect("a context opens")
    }

    /// Whether the device computes in f64.
    pub(crate) fn is_oracle(&self) -> bool {
        matches!(self.origin, Origin::Oracle)
    }

    /// Whether the device is the f32 CPU executor.
    pub(crate) fn is_cpu(&self) -> bool {
        matches!(self.origin, Origin::Cpu)
    }

    /// Whether the device is a slow software driver, on which only small shapes are sensible.
    pub(crate) fn is_slow(&self) -> bool {
        self.tag().contains("swiftshader")
    }

    /// Whether its driver takes long to compile a kernel, so that thousands of programs take an hour.
    pub(crate) fn compiles_slowly(&self) -> bool {
        matches!(&self.origin, Origin::Adapter(info) if info.caps.kind != DeviceKind::SoftwareGpu)
    }

    /// Whether the device is a Vulkan adapter.
    pub(crate) fn is_vulkan(&self) -> bool {
        matches!(self.origin, Origin::Adapter(_))
    }
}

/// Every device found. `WGRAD_TEST_DEVICES` (tags, comma-separated) limits the list.
pub(crate) fn all() -> &'static [Subject] {
    static ALL: OnceLock<Vec<Subject>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut subjects = vec![Subject::new(Origin::Cpu), Subject::new(Origin::Oracle)];
        subjects
            .extend(wgrad_wgpu::adapters().into_iter().map(|a| Subject::new(Origin::Adapter(Box::new(a)))));
        let tags: Vec<String> = subjects.iter().map(Subject::tag).collect();
        for (at, subject) in subjects.iter_mut().enumerate() {
            if tags.iter().filter(|tag| **tag == tags[at]).count() > 1 {
                let number = tags[..=at].iter().filter(|tag| **tag == tags[at]).count();
                subject.tag = format!("{}-{number}", tags[at]);
            }
        }
        if let Ok(only) = std::env::var("WGRAD_TEST_DEVICES") {
            subjects.retain(|s| only.split(',').any(|tag| s.tag().contains(tag.trim())));
        }
        subjects
    })
}

/// The oracle, with which others are compared.
pub(crate) fn oracle() -> Context {
    Context::new(Arc::new(Oracle::new()) as Arc<dyn Backend>).expect("a context opens")
}

/// As [`oracle`], with options.
pub(crate) fn oracle_with(options: ContextOptions) -> Context {
    Context::with(Arc::new(Oracle::new()) as Arc<dyn Backend>, options).expect("a context opens")
}

/// The CPU executor.
pub(crate) fn cpu() -> Context {
    Context::new(Arc::new(Cpu::new()) as Arc<dyn Backend>).expect("a context opens")
}

fn required() -> Vec<String> {
    let names = std::env::var("WGRAD_TEST_REQUIRE").unwrap_or_default();
    names.split(',').map(|n| n.trim().to_lowercase()).filter(|n| !n.is_empty()).collect()
}

fn missing(subjects: &[Subject]) -> Vec<String> {
    let has = |name: &String| subjects.iter().any(|s| s.tag().contains(name));
    required().into_iter().filter(|name| !has(name)).collect()
}

/// The lines printed before the tests.
pub(crate) fn report(subjects: &[Subject]) -> Vec<String> {
    let mut lines = vec!["devices under test:".to_owned()];
    for subject in subjects {
        lines.push(match &subject.origin {
            Origin::Cpu => "  cpu      the CPU executor, f32".to_owned(),
            Origin::Oracle => "  oracle   the CPU executor, f64".to_owned(),
            Origin::Adapter(info) => format!("  {:8} {} ({})", subject.tag(), info.name, info.driver),
        });
    }
    if !subjects.iter().any(Subject::is_vulkan) {
        lines.push("  skipped: no Vulkan adapter was found".to_owned());
    }
    lines.extend(missing(subjects).into_iter().map(|name| format!("  missing: {name}, which is required")));
    lines
}

/// Fails when an adapter named by `WGRAD_TEST_REQUIRE` is missing.
pub(crate) fn check_required(subjects: &[Subject]) {
    let missing = missing(subjects);
    assert!(missing.is_empty(), "required adapters are missing: {missing:?}");
    for subject in subjects {
        let kind = subject.backend().caps().kind;
        assert_eq!(subject.is_oracle(), kind == DeviceKind::Oracle);
    }
}
