"""deploy/slurm on a real mount with the environment Slurm gives; the containers of deploy/kubernetes as a kubelet starts them, and whether what they say is what Kubernetes and the command understand."""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess

import pytest

from mounts import ROOT, SLUICE, eventually, run

SLURM = ROOT / "deploy/slurm"
KUBERNETES = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
SANITIZER = ("TSAN_OPTIONS", "ASAN_OPTIONS", "UBSAN_OPTIONS", "G_SLICE")


class Node:
    """A node of Slurm with its settings; prolog and epilog run with the environment of a job and nothing else."""

    def __init__(self, m, base, **settings):
        self.m, self.base = m, base
        self.env_file = base / "slurm.env"
        self.state = base / "state"
        scontrol = base / "scontrol"
        scontrol.write_text("#!/bin/sh\n[ \"$1 $2\" = 'show hostnames' ] && echo \"$3\" | tr , '\\n'\n")
        scontrol.chmod(0o755)
        settings = {"sluice": SLUICE, "mount": m.path, "state": self.state, "scontrol": scontrol, "warm_wait": 60, **settings}
        self.env_file.write_text("# settings\n\n" + "".join(f"{k}={v}\n" for k, v in settings.items()))

    def run(self, script, comment, job=4711, **env):
        sanitizer = {k: v for k, v in os.environ.items() if k in SANITIZER}
        env = {**sanitizer, "SLURM_JOB_ID": str(job), "SLURM_JOB_USER": "root", "SLURM_JOB_UID": "0", "SLURM_JOB_COMMENT": comment,
               "SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1", "SLUICE_SLURM_ENV": str(self.env_file), **self.m.env, **env}
        return subprocess.run([SLURM / script], env=env, cwd="/", capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                              check=False)

    def prolog(self, comment, **kw):
        return self.run("prolog.sh", comment, **kw)

    def epilog(self, comment, **kw):
        return self.run("epilog.sh", comment, **kw)


def cached(m, path):
    return m.info(path)["cached_bytes"]


def test_a_job_finds_its_data_and_leaves_nothing_behind(mount, store, base):
    node = Node(mount, base)
    for i in range(10):
        store.put(f"dataset/f{i}", b"12345")
        store.put(f"models/m{i}", b"123")
    comment = f"a note sluice=dataset,{mount.path}/models/m3 sluice-save=ckpt sluice-evict"
    done = node.prolog(comment)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert [cached(mount, f"dataset/f{i}") for i in range(10)] == [5] * 10
    assert cached(mount, "models/m3") == 3 and cached(mount, "models/m4") == 0
    (mount.path / "ckpt").mkdir()
    (mount.path / "ckpt/step1").write_bytes(b"saved")
    done = node.epilog(comment)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert store.get("ckpt/step1") == b"saved"
    assert cached(mount, "dataset/f0") == 0 and cached(mount, "models/m3") == 0
    assert not list(node.state.iterdir())


def test_jobs_that_ask_for_nothing_need_no_mount(make_mount, base):
    node = Node(make_mount(start=False), base)
    for comment in ("", "just a note"):
        assert node.prolog(comment).returncode == 0
        assert node.epilog(comment).returncode == 0
    done = node.prolog("sluice=dataset")
    assert done.returncode == 1 and "does not say how to make it" in done.stderr


def test_the_prolog_mounts_what_is_not_there(make_mount, store, base):
    m = make_mount(start=False)
    conf = base / "lake.conf"
    conf.write_text(f"source = {m.source}\ncache-dir = {m.cache}\nlog-file = {m.log_path}\n" +
                    (f"endpoint-url = {m.store.endpoint}\n" if m.store.endpoint else ""))
    node = Node(m, base, config=conf)
    store.put("dataset/f", b"12345")
    done = node.prolog("sluice=dataset", HOME="/root")
    assert done.returncode == 0, done.stderr
    assert m.is_mounted() and cached(m, "dataset/f") == 5
    m.umount()
    conf.write_text("source = file:///none/such/place\n" f"cache-dir = {base}/other\n")
    done = node.prolog("sluice=dataset", HOME="/root")
    assert done.returncode == 1 and "cannot be mounted" in done.stderr


def test_wrong_names_are_told_and_drain_no_node(mount, store, base):
    node = Node(mount, base)
    store.put("dataset/f", b"12345")
    done = node.prolog("sluice=dataset,none,../etc,/etc/passwd sluice-fast")
    assert done.returncode == 0
    for word in ("'../etc' is left out", "'/etc/passwd' is left out", "'sluice-fast' of the job's comment is not understood", "none: "):
        assert word in done.stderr, done.stderr
    assert cached(mount, "dataset/f") == 5


def test_a_list_names_what_is_beside_it_and_nodes_share_it(make_mount, store, base):
    for i in range(40):
        store.put(f"wds/part-{i:03}.tar", b"12345")
    store.put("wds/shards.txt", b"part-{000..029}.tar\n")
    seen = {}
    for name in ("n1", "n2"):
        m = make_mount(name)
        (base / name / "node").mkdir()
        node = Node(m, base / name / "node")
        done = node.prolog("sluice-list=wds/shards.txt sluice-split", SLURM_JOB_NODELIST="n1,n2", SLURMD_NODENAME=name)
        assert done.returncode == 0 and not done.stderr, done.stderr
        seen[name] = {i for i in range(40) if cached(m, f"wds/part-{i:03}.tar")}
    assert seen["n1"] | seen["n2"] == set(range(30)) and not seen["n1"] & seen["n2"]
    assert seen["n1"] and seen["n2"]


def test_the_end_of_a_job_ends_its_warm_up(make_mount, store, base):
    m = make_mount(fault="op=get,action=delay:500ms")
    for i in range(200):
        store.put(f"dataset/f{i}", b"12345")
    node = Node(m, base, warm_wait=0, warm_limit="1G")
    assert node.prolog("sluice=dataset").returncode == 0
    job = int((node.state / "4711").read_text())
    assert run("warmup", f"--status={job}", m.path, check=False).returncode == 3
    done = node.epilog("sluice=dataset")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert eventually(lambda: "stopped" in run("warmup", f"--status={job}", m.path, check=False).stdout)


def test_what_is_not_saved_in_time_is_told_and_kept(make_mount, store, base):
    m = make_mount(fault="op=put,action=error:-EIO")
    node = Node(m, base, save_wait=1)
    (m.path / "ckpt").write_bytes(b"only copy")
    done = node.epilog("sluice-save=ckpt")
    assert done.returncode == 0 and "it is kept on this node" in done.stderr
    assert (m.path / "ckpt").read_bytes() == b"only copy"


def test_an_epilog_that_is_not_to_wait_does_not(make_mount, base):
    m = make_mount(fault="op=put,action=error:-EIO")
    node = Node(m, base, save_wait=0)
    (m.path / "ckpt").write_bytes(b"only copy")
    done = node.epilog("sluice-save=ckpt")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert m.status()["dirty_files"] == 1


def test_the_last_setting_needs_no_end_of_line(mount, store, base):
    node = Node(mount, base)
    store.put("dataset/f", b"12345")
    lines = node.env_file.read_text().splitlines()
    node.env_file.write_text("\n".join(sorted(lines, key=lambda line: line.startswith("mount="))))
    assert node.prolog("sluice=dataset").returncode == 0
    assert cached(mount, "dataset/f") == 5


# ---- kubernetes ----


def documents():
    yaml = pytest.importorskip("yaml")
    for path in KUBERNETES:
        for doc in yaml.safe_load_all(path.read_text()):
            yield path.name, doc


def pods():
    for name, doc in documents():
        yield name, doc["spec"] if doc["kind"] == "Pod" else doc["spec"]["template"]["spec"]


def containers():
    for name, pod in pods():
        for c in [*pod.get("initContainers", []), *pod["containers"]]:
            yield name, pod, c


def commands_of(c):
    """Every sluice command of a container: its own, those of its probes and hooks, and in shell text."""
    found = [c["command"]]
    found += [c[k]["exec"]["command"] for k in ("startupProbe", "livenessProbe", "readinessProbe") if k in c]
    found += [hook["exec"]["command"] for hook in c.get("lifecycle", {}).values()]
    for command in found:
        if command[:2] == ["sh", "-c"]:
            for part in re.split(r"&&|\|\||;", command[2]):
                words = shlex.split(part)
                yield words[words.index("sluice"):] if "sluice" in words else []
        else:
            yield command


def test_manifests_are_of_their_kinds():
    assert {name: doc["kind"] for name, doc in documents()} == {
        "init-container.yaml": "Pod", "node-mount.yaml": "DaemonSet", "sidecar.yaml": "Pod", "warm-job.yaml": "Job"}
    for name, doc in documents():
        assert doc["apiVersion"] and doc["metadata"]["name"], name


# Fields that the client library of Debian 12 (Kubernetes 1.22) does not know yet.
NEWER = {("V1JobSpec", "podFailurePolicy"), ("V1Container", "restartPolicy")}
VALUES = {"str": str, "int": int, "bool": bool, "float": float}


def problems(models, kind, data, where):
    """What an API server would refuse: fields that the type does not have or has to have and does not get, values of another type."""
    inner = re.fullmatch(r"list\[(.*)\]|dict\(str, (.*)\)", kind)
    if inner:
        if not isinstance(data, list if inner[1] else dict):
            yield f"{where}: {data!r} is no {kind}"
            return
        for key, value in enumerate(data) if inner[1] else data.items():
            yield from problems(models, inner[1] or inner[2], value, f"{where}[{key}]")
    elif hasattr(models, kind):
        model = getattr(models, kind)
        names = {json_name: name for name, json_name in model.attribute_map.items()}
        for key, value in data.items():
            if key in names:
                yield from problems(models, model.openapi_types[names[key]], value, f"{where}.{key}")
            elif (kind, key) not in NEWER:
                yield f"{where}: {kind} has no {key}"
        try:
            model(**{names[key]: value for key, value in data.items() if key in names})
        except ValueError as e:
            yield f"{where}: {e}"
    elif kind in VALUES and type(data) is not VALUES[kind]:
        yield f"{where}: {data!r} is no {kind}"


def test_manifests_are_what_the_api_takes():
    models = pytest.importorskip("kubernetes.client").models
    for name, doc in documents():
        assert list(problems(models, f"V1{doc['kind']}", doc, name)) == []
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", doc["metadata"]["name"])
    wrong = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"commands": ["x"], "args": "x"}], "hostPID": "yes"}}
    assert [p.split(": ", 1)[0] for p in problems(models, "V1Pod", wrong, "w")] == ["w.spec.containers[0]", "w.spec.containers[0].args", "w.spec.containers[0]", "w.spec.hostPID"]


def test_wrong_usage_ends_the_job_and_nothing_else_does():
    job = next(doc["spec"] for _name, doc in documents() if doc["kind"] == "Job")
    names = {c["name"] for c in job["template"]["spec"]["containers"]}
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # a policy of failures needs that
    assert [(rule["action"], rule["onExitCodes"]) for rule in job["podFailurePolicy"]["rules"]] == [
        ("FailJob", {"containerName": next(iter(names)), "operator": "In", "values": [2]})]


def test_containers_use_volumes_that_are_there():
    for name, pod, c in containers():
        volumes = {v["name"] for v in pod.get("volumes", [])}
        for mount in c.get("volumeMounts", []):
            assert mount["name"] in volumes, (name, mount)
            if mount.get("mountPropagation") == "Bidirectional":
                assert c["securityContext"]["privileged"], (name, c["name"])


def test_commands_are_those_of_the_program():
    verbs, seen = run("--list-commands").stdout.split(), 0
    for name, _pod, c in containers():
        for command in commands_of(c):
            if not command or command[0] != "sluice":
                continue
            seen += 1
            assert command[1] in verbs, (name, command)
            options = run("--list-options", command[1]).stdout.split() + ["-f", "-b"]
            for word in command[2:]:
                assert not word.startswith("-") or word.split("=")[0] in options, (name, word)
            sockets = {m["mountPath"] for m in c.get("volumeMounts", [])}
            assert "/run/sluice" in sockets, f"{name}: {c['name']} cannot reach the daemon"
    assert seen >= 9


def test_the_shares_of_the_job_are_as_many_as_its_pods():
    job = next(doc for _name, doc in documents() if doc["kind"] == "Job")
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[command.index("--nodes") + 1] == f"$(NODE)/{job['spec']['completions']}"
    assert job["spec"]["completionMode"] == "Indexed"


class Kubelet:
    """Starts containers as a kubelet does, on folders of ours: volumes as bind mounts with the modes that it gives them, in a mount namespace that outlives the containers, as a node's does."""

    MODES = {"hostPath": 0o755, "emptyDir": 0o777}

    def __init__(self, base, container, volumes, options=""):
        """options: what its mount gets beside those of the file."""
        self.base, self.container, self.options, self.volumes = base, container, options, {}
        (base / "store").mkdir()
        self.holder = subprocess.Popen(["unshare", "-m", "--propagation", "private", "sleep", "infinity"])
        assert eventually(lambda: os.readlink(f"/proc/{self.holder.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"), 10)
        for mount in container["volumeMounts"]:
            volume = volumes[mount["name"]]
            kind = next(k for k in volume if k != "name")
            if kind not in self.MODES or mount["mountPath"] == "/dev/fuse":
                continue
            self.volumes[mount["mountPath"]] = volume
            folder = self.place(mount["mountPath"])
            folder.mkdir(parents=True)
            folder.chmod(self.MODES[kind])
            if mount["mountPath"] == "/run/sluice":
                self.inside("sh", "-c", f"mkdir -p /run/sluice && mount --bind {folder} /run/sluice")

    def place(self, path):
        return pathlib.Path(self.translate(path.replace("/run/sluice", "/run-sluice")))

    def translate(self, text):
        text = re.sub(r"(?<![\w/.-])/(var/lib/sluice|lake|cache|run-sluice)(?=[/\s]|$)", lambda x: f"{self.base}/{x.group(1)}", text)
        # What a node's disk is to keep free, the one that the tests run on may not have.
        return text.replace("s3://bucket/prefix", f"file://{self.base}/store").replace("--region eu-west-1", self.options).replace("--free-space 20%", "--free-space 1%")

    def words(self, command):
        words = [self.translate(w) for w in command]
        if words[:2] == ["sh", "-c"]:
            return [*words[:2], re.sub(r"(?<![\w/.-])sluice (?=[a-z])", f"{SLUICE} ", words[2])]
        return [str(SLUICE) if w == "sluice" else w for w in words]

    def inside(self, *words, timeout=60):
        return subprocess.run(["nsenter", "-t", str(self.holder.pid), "-m", *words], capture_output=True, text=True, timeout=timeout)

    def start(self):
        self.pod = subprocess.Popen(["nsenter", "-t", str(self.holder.pid), "-m", *self.words(self.container["command"])], start_new_session=True)

    def ready(self):
        return eventually(lambda: self.pod.poll() is None and self.inside(*self.words(self.container["startupProbe"]["exec"]["command"])).returncode == 0, 30)

    def run(self, container, volumes, annotations=None, change=lambda command: command):
        """Another container of this node, of the same Pod or another one, with its own environment only, until it ends. It sees what the mount's container has where both say the same."""
        for mount in container["volumeMounts"]:
            theirs, ours = volumes[mount["name"]], self.volumes[mount["mountPath"]]
            assert theirs.get("hostPath", {}).get("path") == ours.get("hostPath", {}).get("path"), mount
        env = {e["name"]: e["value"] if "value" in e else annotations[re.search(r"annotations\['(.*)'\]", e["valueFrom"]["fieldRef"]["fieldPath"])[1]] for e in container.get("env", [])}
        command = [re.sub(r"\$\((\w+)\)", lambda x: env[x[1]], word) for word in change(container["command"])]
        given = {"PATH": os.environ["PATH"], "HOME": "/root", **{k: os.environ[k] for k in SANITIZER if k in os.environ}, **env}
        return self.inside("env", "-i", *(f"{k}={v}" for k, v in given.items()), *self.words(command), timeout=120)

    def cached(self, folder):
        """Names in it of which all bytes are here, and all of its names."""
        names = self.inside("ls", folder).stdout.split()
        lines = self.inside(str(SLUICE), "info", "--json", *(f"{folder}/{name}" for name in names)).stdout.splitlines()
        return {name for name, line in zip(names, lines, strict=True) if json.loads(line)["cached_bytes"] == 5}, set(names)

    def end(self):
        if self.pod.poll() is None:
            os.killpg(self.pod.pid, signal.SIGKILL)
        self.holder.kill()
        self.pod.wait()
        self.holder.wait()


def find(file, name=None):
    """The container of that name, or the one that mounts; and the volumes of its Pod."""
    pod = next(p for f, p in pods() if f == file)
    c = next(c for c in [*pod.get("initContainers", []), *pod["containers"]] if (c["name"] == name if name else "startupProbe" in c))
    return c, {v["name"]: v for v in pod["volumes"]}


@pytest.fixture
def node(base):
    """node(file, files, options): what that file mounts is there, with so many files of five bytes in dataset/."""
    made = []

    def make(file="node-mount.yaml", files=40, options=""):
        k = Kubelet(base, *find(file), options)
        made.append(k)
        (base / "store/dataset").mkdir()
        for i in range(files):
            (base / f"store/dataset/f{i:02}").write_bytes(b"12345")
        k.start()
        assert k.ready()
        return k

    yield make
    for k in made:
        try:
            k.inside(*k.words(k.container["lifecycle"]["preStop"]["exec"]["command"]))
        finally:
            k.end()


def test_the_init_container_ends_when_the_data_is_there(node):
    k = node()
    done = k.run(*find("init-container.yaml", "warm"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])
    here, names = k.cached(k.translate("/var/lib/sluice/mnt/lake/dataset"))
    assert here == names and len(names) == 40


def test_the_init_container_lets_the_job_begin_when_its_time_is_over(node):
    k = node(options="--fault op=get,action=delay:1s --max-downloads 4")
    container, volumes = find("init-container.yaml", "warm")
    assert "--timeout 20m" in container["command"][2]
    folder = k.translate("/var/lib/sluice/mnt/lake/dataset")
    done = k.run(container, volumes, change=lambda words: [w.replace("--timeout 20m", "--timeout 1s") for w in words])
    assert done.returncode == 0, done.stderr
    here, names = k.cached(folder)
    assert here < names
    assert k.inside("cat", f"{folder}/{min(names - here)}").stdout == "12345"  # what is left comes as the job reads it
    failed = k.run(container, volumes, change=lambda words: [w.replace("dataset", "none") for w in words])
    assert failed.returncode == 1, failed.stdout  # what is wrong is no matter of time


def test_the_pods_of_the_job_share_the_data(node):
    k = node()
    container, volumes = find("warm-job.yaml", "warm")
    folder, seen = k.translate("/var/lib/sluice/mnt/lake/dataset"), []
    for index in range(4):
        done = k.run(container, volumes, {"batch.kubernetes.io/job-completion-index": str(index)})
        assert done.returncode == 0, done.stderr
        here, names = k.cached(folder)
        seen.append(here)
        assert k.inside(str(SLUICE), "evict", folder).returncode == 0 and not k.cached(folder)[0]  # the next one stands for another node
    assert set().union(*seen) == names and sum(map(len, seen)) == len(names) == 40
    assert k.run(container, volumes, {"batch.kubernetes.io/job-completion-index": "4"}).returncode == 2  # ends the Job


def test_the_sidecar_serves_what_is_ordered_behind(node):
    k = node("sidecar.yaml")
    done = k.run(*find("sidecar.yaml", "warm"))
    assert done.returncode == 0, done.stderr
    folder = k.translate("/lake/data/dataset")
    assert eventually(lambda: k.cached(folder) == (set(os.listdir(k.base / "store/dataset")),) * 2, 30)


@pytest.mark.parametrize("file", ["sidecar.yaml", "node-mount.yaml"])
def test_a_mount_starts_on_fresh_volumes_and_again_after_it_was_killed(base, file):
    container, volumes = find(file)
    k = Kubelet(base, container, volumes)
    lake = k.words(container["startupProbe"]["exec"]["command"])[-1]
    try:
        k.start()
        assert k.ready()
        k.inside("sh", "-c", f"echo kept >{lake}/file")
        os.killpg(k.pod.pid, signal.SIGKILL)
        k.pod.wait()
        assert eventually(lambda: "not connected" in k.inside("ls", lake).stderr, 10)
        k.start()
        assert k.ready()
        assert k.inside("cat", f"{lake}/file").stdout == "kept\n"
        stopped = k.inside(*k.words(container["lifecycle"]["preStop"]["exec"]["command"]))
        assert stopped.returncode == 0, stopped.stderr
        assert k.pod.wait(30) == 0
        assert (base / "store/file").read_text() == "kept\n"
    finally:
        k.end()


def test_scripts_stand_alone():
    """Nothing of them depends on where the tree is: they find their common part beside themselves."""
    assert {p.name for p in SLURM.iterdir()} == {"README.md", "epilog.sh", "prolog.sh", "sluice-job.sh"}
    for name in ("prolog.sh", "epilog.sh"):
        assert os.access(pathlib.Path(SLURM, name), os.X_OK)
