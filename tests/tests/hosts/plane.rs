//! A plane for tests: a CA, hosts, and the part of a gateway's configuration that names them.

use acp_testkit::ability::{self, Ability};
use acp_testkit::certificates::{Authority, CertificateFiles};
use acp_testkit::network::Machine;
use acp_tests::service::Service;
use acp_tests::wait::{LONG, SOON, eventually};
use acp_tests::world::World;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// URI name of the gateway.
const CELL: &str = "acp://test/cell/main";

/// CA of the plane, and the certificate of its cell.
pub(crate) struct Plane {
    authority: Authority,
    cell: CertificateFiles,
}

/// A machine with a supervisor: a process of this one, on a loopback address or in a network namespace.
pub(crate) struct RemoteHost {
    pub(crate) name: String,
    pub(crate) supervisor: Option<Service>,
    machine: Option<Arc<Machine>>,
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

    /// Starts a host on a loopback address, with this TOML in its supervisor's configuration. A cut ends its connections.
    pub(crate) fn host(&self, world: &World, name: &str, extra: &str) -> RemoteHost {
        self.host_on(None, world, name, extra)
    }

    /// Starts a host in a network namespace, where the machine allows one; else like [`Plane::host`]. A cut of a namespace loses
    /// what is sent.
    pub(crate) fn machine(&self, world: &World, name: &str, extra: &str) -> RemoteHost {
        let machine = match ability::has(Ability::NetworkNamespaces) {
            Ok(()) => Some(Arc::new(Machine::create())),
            Err(why) => {
                println!("{name} is on a loopback address, with a relay as its cable: {why}");
                None
            }
        };
        self.host_on(machine, world, name, extra)
    }

    fn host_on(&self, machine: Option<Arc<Machine>>, world: &World, name: &str, extra: &str) -> RemoteHost {
        let ip = machine.as_ref().map_or(Ipv4Addr::LOCALHOST, |machine| machine.address());
        let files = self.authority.issue(name, &[&format!("acp://test/host/{name}")]);
        let as_root =
            if rustix::process::geteuid().is_root() { "run_as_user = 0\nallow_root = true\n" } else { "" };
        let [cert, key, ca] = [&files.cert, &files.key, &files.ca].map(|path| path.display().to_string());
        let text = |port: u16| {
            format!(
                "listen = \"{ip}:{port}\"\ntls_cert = \"{cert}\"\ntls_key = \"{key}\"\ntls_ca = \"{ca}\"\n{extra}\n\
                 [[tenant]]\ncell = \"{CELL}\"\n{as_root}"
            )
        };
        world.write(&format!("{name}.toml"), &text(0));
        let supervisor = start(world, name, machine.as_deref());
        let address = SocketAddr::new(IpAddr::V4(ip), port_of(&supervisor, ip));
        // A later start listens on the same port.
        world.write(&format!("{name}.toml"), &text(address.port()));
        let cable = Cable::of(machine.as_ref(), address);
        RemoteHost { name: name.to_owned(), supervisor: Some(supervisor), machine, address, cable }
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

/// Address of a supervisor that listens on any free port of the loopback address, from its log.
pub(crate) fn address_of(supervisor: &Service) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port_of(supervisor, Ipv4Addr::LOCALHOST)))
}

fn port_of(supervisor: &Service, ip: Ipv4Addr) -> u16 {
    eventually(SOON, "the host listens", || {
        let log = supervisor.log();
        let line = log.lines().find(|line| line.contains("listening for gateways on other machines"))?;
        line.split(&format!("{ip}:")).nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    })
}

fn start(world: &World, name: &str, machine: Option<&Machine>) -> Service {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let (dir, config) = (text(world.path(name)), text(world.path(&format!("{name}.toml"))));
    let mut command = world.command("acp-supervisor");
    command.args(["serve", "--state-dir", &dir, "--config", &config, "--json"]);
    world.start_command(match machine {
        Some(machine) => machine.run(&command),
        None => command,
    })
}

impl RemoteHost {
    /// Returns another cable to the host; one of a network namespace has only one.
    pub(crate) fn another_cable(&self) -> Cable {
        Cable::of(self.machine.as_ref(), self.address)
    }

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
        let supervisor = start(world, &self.name, self.machine.as_deref());
        let listens = || TcpStream::connect(self.address).ok();
        drop(eventually(SOON, "the host listens again", listens));
        self.supervisor = Some(supervisor);
    }
}

/// Way to a host that can be cut.
pub(crate) struct Cable {
    /// Address of the gateway's end.
    pub(crate) address: SocketAddr,
    kind: CableKind,
}

enum CableKind {
    /// A relay in this process, which ends its connections when it is cut.
    Relay(Arc<Mutex<CableState>>),
    /// The cable of a network namespace, which loses what is sent when it is cut.
    Wire(Arc<Machine>),
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
    fn of(machine: Option<&Arc<Machine>>, address: SocketAddr) -> Self {
        match machine {
            Some(machine) => Self { address, kind: CableKind::Wire(Arc::clone(machine)) },
            None => Self::to(address),
        }
    }

    /// A relay to an address.
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
        Self { address, kind: CableKind::Relay(state) }
    }

    /// Cuts the cable: nothing passes until it is mended.
    pub(crate) fn cut(&self) {
        let relay = match &self.kind {
            CableKind::Wire(machine) => return machine.cut(),
            CableKind::Relay(relay) => relay,
        };
        let mut state = lock(relay);
        state.is_cut = true;
        for end in state.ends.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Lets everything pass again.
    pub(crate) fn mend(&self) {
        match &self.kind {
            CableKind::Wire(machine) => machine.mend(),
            CableKind::Relay(relay) => lock(relay).is_cut = false,
        }
    }
}
