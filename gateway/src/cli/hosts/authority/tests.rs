#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
use super::*;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::PermissionsExt as _;

/// 2026-11-29.
const NOW: u64 = 1_795_910_400;

fn files(dir: &Path) -> AuthorityFiles {
    AuthorityFiles::new(&RemoteConfig::default(), dir)
}

fn wanted(plane: Option<&str>) -> WantedNames {
    WantedNames { plane: plane.map(str::to_owned), cell: "main".to_owned(), has_hosts: false }
}

fn open(dir: &Path, plane: Option<&str>, now: u64) -> Result<Authority, String> {
    Authority::open(files(dir), &wanted(plane), now).map_err(|failure| failure.message)
}

/// Public key of a new host.
fn host_key() -> Vec<u8> {
    KeyPair::generate().unwrap().public_key_raw().to_vec()
}

#[test]
fn missing_files_are_made_and_the_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    let AuthorityFiles { cert, key, ca, ca_key } = files(dir.path());
    let first = open(dir.path(), Some("p"), NOW).unwrap();
    assert_eq!(first.made, [ca_key.clone(), ca.clone(), key.clone(), cert.clone()]);
    assert_eq!(first.cell.to_string(), "acp://p/cell/main");
    for path in [&ca_key, &key] {
        assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o600, "{}", path.display());
    }
    let again = open(dir.path(), None, NOW).unwrap();
    assert_eq!((again.made.as_slice(), again.cell.plane.as_str()), (&[][..], "p"));
    // As a killed command leaves it: keys without certificates.
    for removed in [vec![&cert], vec![&cert, &key], vec![&ca, &cert]] {
        removed.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        let made = open(dir.path(), Some("p"), NOW).unwrap().made;
        assert_eq!(made.len(), removed.len(), "{removed:?}: {made:?}");
    }
    let pem = again.sign_host(&host_key(), &again.host("big1"), NOW).unwrap();
    assert!(pem.contains("BEGIN CERTIFICATE"), "{pem}");
}

#[test]
fn cell_certificate_is_renewed_with_its_key_before_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let paths = files(dir.path());
    drop(open(dir.path(), None, NOW).unwrap());
    let key = std::fs::read(&paths.key).unwrap();
    let ends = |now: u64| ClientTls::load(&paths.cert, &paths.key, &paths.ca).unwrap().check(now).unwrap();
    let first = ends(NOW);
    assert!(
        (DAYS * DAY_SECONDS..=(DAYS + 1) * DAY_SECONDS).contains(&(first + DAY_SECONDS - NOW)),
        "{first}"
    );
    assert!(open(dir.path(), None, NOW + 50 * DAY_SECONDS).unwrap().made.is_empty());
    let late = NOW + 70 * DAY_SECONDS;
    assert_eq!(open(dir.path(), None, late).unwrap().made, std::slice::from_ref(&paths.cert));
    assert!(ends(late) > first);
    assert_eq!(std::fs::read(&paths.key).unwrap(), key);
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), Some("p"), NOW).unwrap());
    let paths = files(dir.path());
    let kept = |path: &Path| std::fs::read(path).unwrap();
    let saved: Vec<(PathBuf, Vec<u8>)> =
        [&paths.cert, &paths.key, &paths.ca, &paths.ca_key].map(|path| (path.clone(), kept(path))).into();
    let other = tempfile::tempdir().unwrap();
    drop(open(other.path(), Some("p"), NOW).unwrap());
    let foreign = files(other.path());
    let set_mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let restore = || {
        for (path, bytes) in &saved {
            std::fs::write(path, bytes).unwrap();
            set_mode(path, 0o600);
        }
    };

    assert!(open(dir.path(), Some("q"), NOW).err().unwrap().contains("is of plane p"));
    for (from, to) in [(&foreign.ca, &paths.ca), (&foreign.ca_key, &paths.ca_key)] {
        let _ = std::fs::copy(from, to).unwrap();
        let error = open(dir.path(), None, NOW).err().unwrap();
        assert!(error.contains("is not the CA of"), "{}: {error}", to.display());
        restore();
    }
    for (gone, want) in [(&paths.ca_key, "ca.crt is there"), (&paths.key, "cell.crt is there")] {
        std::fs::remove_file(gone).unwrap();
        let error = open(dir.path(), None, NOW).err().unwrap();
        assert!(error.contains(want), "{error}");
        restore();
    }
    set_mode(&paths.ca_key, 0o644);
    assert!(open(dir.path(), None, NOW).err().unwrap().contains("chmod 0600"));
}

/// A new CA would lock the gateway out at its hosts, as with a mistaken state directory.
#[test]
fn ca_of_configured_hosts_is_not_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let wanted = WantedNames { has_hosts: true, ..wanted(None) };
    let open = || Authority::open(files(dir.path()), &wanted, NOW).map_err(|failure| failure.message);
    assert!(open().err().unwrap().contains("hosts are configured, but"));
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing was made");
    drop(self::open(dir.path(), None, NOW).unwrap());
    assert!(open().is_ok());
}

#[test]
fn only_certificates_of_the_ca_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let paths = files(dir.path());
    let ca = open(dir.path(), None, NOW).unwrap().ca;
    assert_eq!(std::fs::read_to_string(&paths.ca).unwrap().trim(), ca.trim());
    let key = std::fs::read_to_string(&paths.ca_key).unwrap();
    std::fs::write(&paths.ca, format!("{key}{ca}a remark\n{key}{ca}")).unwrap();
    assert_eq!(open(dir.path(), None, NOW).unwrap().ca, format!("{ca}{ca}"));
    let combined = AuthorityFiles { ca: paths.ca_key.clone(), ..paths };
    let error = Authority::open(combined, &wanted(None), NOW).err().unwrap().message;
    assert!(error.contains("are four files"), "{error}");
}

#[test]
fn certificate_names_the_host_of_the_record_only() {
    let dir = tempfile::tempdir().unwrap();
    let authority = open(dir.path(), Some("p"), NOW).unwrap();
    let pem = authority.sign_host(&host_key(), &authority.host("big1"), NOW).unwrap();
    let path = dir.path().join("host.crt");
    std::fs::write(&path, pem).unwrap();
    assert_eq!(identity_in(&path).unwrap().to_string(), "acp://p/host/big1");
}

#[test]
fn files_of_the_configuration_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| Some(dir.path().join(name));
    let config =
        RemoteConfig { ca_key: at("safe/ca.key"), cert: at("etc/own.crt"), ..RemoteConfig::default() };
    let paths = AuthorityFiles::new(&config, &dir.path().join("state"));
    let made = Authority::open(paths, &wanted(None), NOW).unwrap().made;
    let names = ["safe/ca.key", "state/tls/ca.crt", "state/tls/cell.key", "etc/own.crt"];
    assert_eq!(made, names.map(|name| dir.path().join(name)));
}
