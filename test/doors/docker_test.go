package doors

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
)

// row is something that was seen of docker.
type row struct {
	name string
	play func(w *dockerHost)
}

// TestDocker plays docker's actions on containers.
func TestDocker(t *testing.T) {
	t.Parallel()
	playDocker(t, []row{
		{"two containers", twoContainers},
		{"copy from a running container", copyWhileRunning},
		{"copy-up", copyUp},
		{"restart of a container", restartContainer},
		{"anonymous volume with --rm", anonymous},
		{"rm in use", removeInUse},
		{"refused option", refusedOption},
		{"missing volume", missingVolume},
	})
}

// TestDockerWithoutPlugin plays docker's actions while the plugin does not respond, some of them driven by docker's own
// timers.
func TestDockerWithoutPlugin(t *testing.T) {
	t.Parallel()
	playDocker(t, []row{
		{"kill -9 of the plugin", killPlugin},
		{"plugin down at start", downAtStart},
		{"plugin down at stop", downAtStop},
		{"plugin down at the daemon's start", downAtDaemonStart},
	})
}

// TestDockerKilled: volumes while the programs that manage them are killed.
func TestDockerKilled(t *testing.T) {
	t.Parallel()
	playDocker(t, []row{
		{"kill -9 of volplaned", killPlane},
		{"kill -9 of dockerd", killContainers},
		{"kill -9 of dockerd, the plugin and volplaned", killAll},
		{"live-restore", liveRestore},
	})
}

// playDocker plays rows one after the other with one docker. At the end nothing uses a volume of any row, and all data
// are intact.
func playDocker(t *testing.T, rows []row) {
	t.Helper()
	w := newDockerHost(t, ownProgram)
	w.startDocker()
	w.docker("import", w.path("image.tar"), image)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			outer := w.t
			w.t = t
			defer func() { w.t = outer }()
			r.play(w)
		})
	}
	// No container starts any more that a grace would be for.
	w.setGrace(shortGrace)
	w.nothingUses()
	w.setGrace(grace)
	w.end()
}

func twoContainers(w *dockerHost) {
	w.volume("two")
	w.sleeps("two-a", "two")
	w.sleeps("two-b", "two")
	w.docker("rm", "-f", "two-a")
	w.intact("two-b", "two")
	w.docker("rm", "-f", "two-b")
	w.gone("two")
}

// copyWhileRunning: docker mounts and unmounts under the id of the container, which keeps running.
func copyWhileRunning(w *dockerHost) {
	w.volume("cp")
	w.sleeps("cp", "cp")
	for range 2 {
		w.docker("cp", "cp:/data/file", w.path("copied"))
		w.intact("cp", "cp")
	}
	w.docker("stop", "cp")
	w.unused("cp")
	w.docker("cp", "cp:/data/file", w.path("copied"))
	w.unused("cp")
	w.docker("rm", "cp")
	w.gone("cp")
}

// copyUp: a new volume is empty, and docker fills it with the image's files.
func copyUp(w *dockerHost) {
	w.docker("volume", "create", "-d", w.driver, "-o", "size=16Mi", "seeded")
	w.docker("create", "--name", "up", "--network", "none", "-v", "seeded:/seed", image, "/bin/busybox", "cat",
		"/seed/file")
	w.unused("seeded")
	if got := w.docker("start", "-a", "up"); got != "seed" {
		w.t.Errorf("the volume has %q", got)
	}
	w.docker("rm", "up")
	w.unused("seeded")
	w.docker("volume", "rm", "seeded")
}

// missingVolume: a missing volume is created as ours if the command names the driver, and an existing one is never
// replaced.
func missingVolume(w *dockerHost) {
	args := func(name string) []string {
		return []string{
			"run", "--rm", "--network", "none", "--mount",
			"type=volume,source=" + name + ",target=/data,volume-driver=" + w.driver, image, "/bin/busybox", "true",
		}
	}
	w.docker("volume", "create", "-d", "local", "taken")
	if out, err := w.tryDocker(args("taken")...); err == nil {
		w.t.Errorf("a local volume was taken for one of ours: %s", out)
	}
	w.docker("volume", "rm", "taken")
	w.docker(args("missing")...)
	if got := w.docker("volume", "inspect", "-f", "{{.Driver}}", "missing"); !strings.HasPrefix(got, w.driver) {
		w.t.Errorf("docker has made a volume of driver %s", got)
	}
	w.unused("missing")
	w.docker("volume", "rm", "missing")
}

func restartContainer(w *dockerHost) {
	w.volume("again")
	w.sleeps("again", "again")
	w.docker("restart", "again")
	w.intact("again", "again")
	w.docker("rm", "-f", "again")
	w.gone("again")
}

func anonymous(w *dockerHost) {
	w.docker("run", "--rm", "--network", "none", "--mount",
		"type=volume,dst=/data,volume-driver="+w.driver+",volume-opt=size=16Mi", image, "/bin/sh", "-c",
		"echo x > /data/file")
	testkit.Eventually(w.t, patience, func() string {
		claims, err := w.client.CoreV1().PersistentVolumeClaims("default").List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range claims.Items {
			if len(c.Name) == 64 {
				return "claim " + c.Name + " is left"
			}
		}
		return ""
	})
}

func removeInUse(w *dockerHost) {
	w.volume("used")
	w.sleeps("used", "used")
	if out, err := w.tryDocker("volume", "rm", "used"); err == nil {
		w.t.Errorf("a volume in use was removed: %s", out)
	}
	// Forced, docker forgets the container's use of it, but not the plugin.
	if out, err := w.tryDocker("volume", "rm", "-f", "used"); err == nil {
		w.t.Errorf("a volume in use was removed by force: %s", out)
	}
	w.intact("used", "used")
	status := w.docker("volume", "inspect", "-f",
		"{{.Status.why}} {{.Status.phase}} {{.Status.node}} {{.Status.size}}", "used")
	if status != "it is mounted Bound node1 16Mi" {
		w.t.Errorf("the status is %q", status)
	}
	w.docker("rm", "-f", "used")
	w.gone("used")
}

func refusedOption(w *dockerHost) {
	out, err := w.tryDocker("volume", "create", "-d", w.driver, "-o", "type=nfs", "bad")
	if err == nil || !strings.Contains(out, "the options are access, class, clone, mode, retain, size, snapshot") {
		w.t.Errorf("%v: %s", err, out)
	}
}

func (w *dockerHost) restartPlugin() {
	w.t.Helper()
	if err := w.plugin.Restart(); err != nil {
		w.t.Fatal(err)
	}
}

func killPlugin(w *dockerHost) {
	w.volume("lost")
	w.sleeps("lost", "lost")
	w.plugin.Kill()
	w.restartPlugin()
	w.intact("lost", "lost")
	w.docker("rm", "-f", "lost")
	w.gone("lost")
}

// downAtStart: docker tries again, and the plugin runs in time.
func downAtStart(w *dockerHost) {
	w.volume("late")
	w.plugin.Kill()
	started := make(chan string, 1)
	go func() {
		out, err := w.tryDocker("run", "-d", "--network", "none", "--name", "late", "-v", "late:/data", image,
			"/bin/busybox", "sleep", "3600")
		started <- out + errorText(err)
	}()
	select {
	case out := <-started:
		w.t.Errorf("a container started without the plugin: %s", out)
	case <-time.After(2 * time.Second):
	}
	w.restartPlugin()
	if out := <-started; strings.Contains(out, "exit status") {
		w.t.Error(out)
	}
	w.intact("late", "late")
	w.docker("rm", "-f", "late")
	w.gone("late")
}

// downAtStop: docker gives up the unmount, and mounts under the same id when the container starts again.
func downAtStop(w *dockerHost) {
	w.volume("deaf")
	w.sleeps("deaf", "deaf")
	w.plugin.Kill()
	w.docker("stop", "deaf")
	w.restartPlugin()
	w.docker("start", "deaf")
	w.intact("deaf", "deaf")
	w.docker("rm", "-f", "deaf")
	w.gone("deaf")
}

func killPlane(w *dockerHost) {
	w.volume("plane")
	w.sleeps("plane", "plane")
	w.plane.Kill()
	w.intact("plane", "plane")
	w.startPlane()
	w.intact("plane", "plane")
	w.docker("rm", "-f", "plane")
	w.gone("plane")
}

// killContainers: the containers die with docker, which starts them again with ids of their own.
func killContainers(w *dockerHost) {
	w.volume("dead")
	w.sleeps("dead", "dead", "--restart", "always")
	w.sleeps("dead-too", "dead")
	w.killDocker()
	w.restartDocker()
	w.running("dead")
	w.intact("dead", "dead")
	w.docker("rm", "-f", "dead", "dead-too")
	w.gone("dead")
}

// running waits until docker has started a container on its own.
func (w *dockerHost) running(name string) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() string {
		out, err := w.tryDocker("exec", name, "/bin/busybox", "true")
		if err != nil {
			return out
		}
		return ""
	})
}

func killAll(w *dockerHost) {
	w.volume("all")
	w.sleeps("all", "all", "--restart", "always")
	w.plane.Kill()
	w.plugin.Kill()
	w.killDocker()
	w.startPlane()
	w.restartPlugin()
	w.restartDocker()
	w.running("all")
	w.intact("all", "all")
	w.docker("rm", "-f", "all")
	w.gone("all")
}

func downAtDaemonStart(w *dockerHost) {
	w.volume("early")
	w.sleeps("early", "early", "--restart", "always")
	w.engine.Stop()
	w.unused("early")
	w.plugin.Kill()
	if err := w.engine.Restart(); err != nil {
		w.t.Fatal(err)
	}
	// It requests the volume immediately, and tries again.
	w.restartPlugin()
	w.waitForDocker()
	w.running("early")
	w.intact("early", "early")
	w.docker("rm", "-f", "early")
	w.gone("early")
}

// liveRestore: the container keeps running without docker, which unmounts under the old id.
func liveRestore(w *dockerHost) {
	w.engine.Stop()
	w.startDocker("--live-restore")
	w.volume("live")
	w.sleeps("live", "live")
	w.setGrace(shortGrace)
	w.killDocker()
	w.stays("live", shortGrace)
	w.setGrace(grace)
	w.restartDocker()
	w.intact("live", "live")
	w.docker("rm", "-f", "live")
	w.gone("live")
}

// setGrace replaces the plugin by one with another grace period.
func (w *dockerHost) setGrace(grace time.Duration) {
	w.t.Helper()
	w.plugin.Stop()
	var err error
	if w.plugin, err = plane.Run(w.path("plugin.log"), "volplane", w.pluginArgs(grace)...); err != nil {
		w.t.Fatal(err)
	}
}

// stays checks, for longer than the grace period, that a container's volume stays mounted.
func (w *dockerHost) stays(claim string, grace time.Duration) {
	w.t.Helper()
	end := time.After(grace * 4 / 3)
	for {
		if users, err := w.users(claim); err != nil || len(users) != 1 {
			w.t.Fatalf("volume %s is let go while a container has it: %v", claim, err)
		}
		select {
		case <-end:
			return
		case <-time.After(time.Second / 4):
		}
	}
}
