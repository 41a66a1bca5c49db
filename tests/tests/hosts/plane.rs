//! A plane for tests: a CA, hosts on loopback addresses, and the part of a gateway's configuration that names them.

use acp_testkit::certificates::{Authority, CertificateFiles};
use acp_tests::service::Service;
use acp_tests::wait::{LONG, SOON, eventually};
use acp_tests::world::World;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// URI name of the gateway.
const CELL: &str = "acp://test/cell/main";

/// CA of the plane, and the certificate of its cell.
pub(crate) struct Plane {
    authority: Authority,
    cell: CertificateFiles,
}

/// A machine with a supervisor: a process of this one, on a loopback address.
pub(crate) struct RemoteHost {
    pub(crate) name: String,
    pub(crate) supervisor: Option<Service>,
    /// Address of its supervisor.
    pub(crate) address: SocketAddr,
    /// Cable between gateway and host.
    pub(crate) cable: Cable,
}

impl Plane {
    pub(crate) fn new(world: &World) -> Self {
        let authority = Authority::new(&world.dir("certificates"), "ca");
        let cell = authority.issue("cell", &[CELL]);
        Self { authority, cell }
    }

    /// Certificate and key of the cell, and the CA.
    pub(crate) fn cell_files(&self) -> [PathBuf; 3] {
        let CertificateFiles { cert, key, ca } = self.cell.clone();
        [cert, key, ca]
    }

    /// Starts a host, with this TOML in its supervisor's configuration.
    pub(crate) fn host(&self, world: &World, name: &str, extra: &str) -> RemoteHost {
        let files = self.authority.issue(name, &[&format!("acp://test/host/{name}")]);
        let as_root =
            if rustix::process::geteuid().is_root() { "run_as_user = 0\nallow_root = true\n" } else { "" };
        let [cert, key, ca] = [&files.cert, &files.key, &files.ca].map(|path| path.display().to_string());
        let text = |port: u16| {
            format!(
                "listen = \"127.0.0.1:{port}\"\ntls_cert = \"{cert}\"\ntls_key = \"{key}\"\ntls_ca = \"{ca}\"\n{extra}\n\
                 [[tenant]]\ncell = \"{CELL}\"\n{as_root}"
            )
        };
        world.write(&format!("{name}.toml"), &text(0));
        let supervisor = start(world, name);
        let address = address_of(&supervisor);
        // A later start listens on the same port.
        world.write(&format!("{name}.toml"), &text(address.port()));
        let cable = Cable::to(address);
        RemoteHost { name: name.to_owned(), supervisor: Some(supervisor), address, cable }
    }

    /// Returns the configuration of a gateway with these hosts; each has these further settings.
    pub(crate) fn configuration(&self, hosts: &[(&RemoteHost, &str)]) -> String {
        let over: Vec<_> = hosts.iter().map(|(host, settings)| (*host, &host.cable, *settings)).collect();
        self.configuration_over(&over)
    }

    /// Returns the configuration of a gateway that reaches hosts over these cables.
    pub(crate) fn configuration_over(&self, hosts: &[(&RemoteHost, &Cable, &str)]) -> String {
        let CertificateFiles { cert, key, ca } = &self.cell;
        let mut text = format!(
            "[remote]\ncert = \"{}\"\nkey = \"{}\"\nca = \"{}\"\n",
            cert.display(),
            key.display(),
            ca.display()
        );
        for (host, cable, settings) in hosts {
            let address = cable.address;
            text.push_str(&format!("[remote.hosts.{}]\naddress = \"{address}\"\n{settings}\n", host.name));
        }
        text
    }
}

/// Address of a supervisor that listens on any free port, from its log.
pub(crate) fn address_of(supervisor: &Service) -> SocketAddr {
    eventually(SOON, "the host listens", || {
        let log = supervisor.log();
        let line = log.lines().find(|line| line.contains("listening for gateways on other machines"))?;
        let port = line.split("127.0.0.1:").nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?;
        Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?)))
    })
}

fn start(world: &World, name: &str) -> Service {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let (dir, config) = (text(world.path(name)), text(world.path(&format!("{name}.toml"))));
    world.start_service("acp-supervisor", &["serve", "--state-dir", &dir, "--config", &config, "--json"])
}

impl RemoteHost {
    /// Socket of the supervisor, for administrators of the host.
    pub(crate) fn socket(&self) -> PathBuf {
        self.supervisor.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name)).socket()
    }

    /// Ends the supervisor in order, with everything that it runs.
    pub(crate) fn end(mut self) {
        let supervisor = self.supervisor.take().unwrap_or_else(|| panic!("{} does not run", self.name));
        assert_eq!(supervisor.terminate(LONG), Some(0));
    }

    /// Kills the supervisor with SIGKILL: its wrappers end all agents.
    pub(crate) fn kill(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.kill9();
        }
    }

    /// Starts the supervisor again, at the same address.
    pub(crate) fn start(&mut self, world: &World) {
        let supervisor = start(world, &self.name);
        let listens = || TcpStream::connect(self.address).ok();
        drop(eventually(SOON, "the host listens again", listens));
        self.supervisor = Some(supervisor);
    }
}

/// TCP connection that can be cut: a relay in this process.
pub(crate) struct Cable {
    /// Address of the gateway's end.
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<CableState>>,
}

#[derive(Default)]
struct CableState {
    is_cut: bool,
    ends: Vec<TcpStream>,
}

fn lock(state: &Mutex<CableState>) -> std::sync::MutexGuard<'_, CableState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cable {
    pub(crate) fn to(host: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<Mutex<CableState>>::default();
        let shared = Arc::clone(&state);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let mut state = lock(&shared);
                // A connection of a cut cable, or of a host that does not run, ends at once.
                let Ok(far) =
                    (if state.is_cut { Err(io::ErrorKind::Other.into()) } else { TcpStream::connect(host) })
                else {
                    continue;
                };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                state.ends.extend([near, far]);
            }
        });
        Self { address, state }
    }

    /// Ends all connections, and refuses new ones.
    pub(crate) fn cut(&self) {
        let mut state = lock(&self.state);
        state.is_cut = true;
        for end in state.ends.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections again.
    pub(crate) fn mend(&self) {
        lock(&self.state).is_cut = false;
    }
}
