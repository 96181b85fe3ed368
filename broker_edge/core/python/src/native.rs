//! The module as Python sees it. `broker_edge/_core.pyi` declares the same interface and must be kept equal.

use std::ffi::CString;
use std::path::PathBuf;

use headwater_broker::config::{Config, ConfigError as BadConfig, Source};
use headwater_broker::{Broker as NativeBroker, StartError as FailedStart, VERSION, cli};
use parking_lot::Mutex;
use pyo3::create_exception;
use pyo3::exceptions::{PyFutureWarning, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

create_exception!(_core, ConfigError, PyValueError, "The settings are wrong.");
create_exception!(
    _core,
    StartError,
    PyRuntimeError,
    "The broker did not start."
);

/// What can go wrong below Python.
enum Failure {
    Config(BadConfig),
    Start(FailedStart),
}

/// The only place that turns Rust errors into Python exceptions.
fn raise(failure: Failure) -> PyErr {
    match failure {
        Failure::Config(error) => ConfigError::new_err(error.to_string()),
        Failure::Start(error) => StartError::new_err(error.to_string()),
    }
}

fn load(
    config_yaml: Option<String>,
    config_path: Option<PathBuf>,
    overrides: Vec<String>,
) -> Result<(Config, Vec<String>), Failure> {
    let source = Source {
        text: config_yaml,
        ..Source::with_environment(config_path, overrides)
    };
    Config::load_with_notes(&source).map_err(Failure::Config)
}

/// Warns about settings that are given by an old name or have no effect any more.
fn warn(py: Python<'_>, notes: Vec<String>) -> PyResult<()> {
    let category = py.get_type::<PyFutureWarning>();
    notes.into_iter().try_for_each(|note| {
        let note =
            CString::new(note).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        PyErr::warn(py, &category, &note, 1)
    })
}

/// A running broker.
#[pyclass(module = "broker_edge._core", frozen)]
struct Broker {
    #[pyo3(get)]
    mqtt: String,
    #[pyo3(get)]
    flight: String,
    #[pyo3(get)]
    admin: String,
    #[pyo3(get)]
    log_id: String,
    /// `None` after [`Broker::stop`].
    running: Mutex<Option<NativeBroker>>,
}

#[pymethods]
impl Broker {
    #[new]
    #[pyo3(signature = (config_yaml=None, config_path=None, overrides=Vec::new()))]
    fn new(
        py: Python<'_>,
        config_yaml: Option<String>,
        config_path: Option<PathBuf>,
        overrides: Vec<String>,
    ) -> PyResult<Broker> {
        let loaded = py.detach(|| load(config_yaml, config_path, overrides));
        let (config, notes) = loaded.map_err(raise)?;
        warn(py, notes)?;
        let started = py.detach(|| NativeBroker::start(config).map_err(Failure::Start));
        let broker = started.map_err(raise)?;
        Ok(Broker {
            mqtt: broker.mqtt_address().to_string(),
            flight: broker.flight_address().to_string(),
            admin: broker.admin_address().to_string(),
            log_id: broker.log_id().to_string(),
            running: Mutex::new(Some(broker)),
        })
    }

    /// A second call waits for the first and then does nothing.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| {
            let mut running = self.running.lock();
            if let Some(broker) = running.take() {
                broker.shutdown();
            }
        });
    }
}

#[pyfunction]
fn run(py: Python<'_>, args: Vec<String>) -> i32 {
    py.detach(|| cli::run(&args))
}

/// Has another name in Rust, because `bench` is an attribute of the compiler.
#[pyfunction(name = "bench")]
fn put_load(py: Python<'_>, args: Vec<String>) -> i32 {
    py.detach(|| headwater_bench::run(&args))
}

#[pyfunction]
#[pyo3(signature = (config_yaml=None, config_path=None, overrides=Vec::new()))]
fn check_config(
    py: Python<'_>,
    config_yaml: Option<String>,
    config_path: Option<PathBuf>,
    overrides: Vec<String>,
) -> PyResult<String> {
    let (config, notes) = load(config_yaml, config_path, overrides).map_err(raise)?;
    warn(py, notes)?;
    Ok(headwater_broker::config::to_json(&config))
}

#[pyfunction]
fn version() -> &'static str {
    VERSION
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Broker>()?;
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_function(wrap_pyfunction!(put_load, module)?)?;
    module.add_function(wrap_pyfunction!(check_config, module)?)?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    module.add("ConfigError", module.py().get_type::<ConfigError>())?;
    module.add("StartError", module.py().get_type::<StartError>())?;
    Ok(())
}
