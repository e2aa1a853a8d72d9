package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/doctor"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/flex/install"
	"volplane.dev/volplane/internal/workshop/finding"
)

// stage is a plugin directory with a host that finds drivers in it.
type stage struct {
	dir  string
	host *host.Host
	// told are the reported changes of drivers, with their times.
	told chan change
}

type change struct {
	host.State
	at time.Time
}

// measureFlex makes a host find a number of FlexVolume drivers, one after the other, and one that is rewritten 1,000
// times in 2 s; calls a driver; makes it mount as many volumes in parallel; and examines one.
func measureFlex(ctx context.Context, figures map[string]any, drivers int) (err error) {
	dir, err := os.MkdirTemp("", "volplane-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &stage{dir: dir, told: make(chan change, 10_000)}
	s.host = &host.Host{
		Dir: filepath.Join(dir, "exec"), StateDir: filepath.Join(dir, "state"), Log: slog.New(slog.DiscardHandler),
	}
	if err := os.Mkdir(s.host.Dir, 0o755); err != nil {
		return err
	}
	s.host.Subscribe(func(st host.State) { s.told <- change{st, time.Now()} })
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.host.Run(running) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()
	for _, measure := range []func(context.Context, map[string]any, int) error{
		s.findable, s.again, s.storm, s.calls, s.atOnce, examination,
	} {
		if err := measure(ctx, figures, drivers); err != nil {
			return err
		}
	}
	return nil
}

// script returns a driver that records each init.
func (s *stage) script(version string) string {
	return fmt.Sprintf("#!/bin/sh\n# %s\necho init >>%s/inits\necho "+
		"'{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}'\n", version, s.dir)
}

// install installs a driver and returns the time of the rename.
func (s *stage) install(name, script string) (time.Time, error) {
	dir := filepath.Join(s.host.Dir, name)
	err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "."+name), []byte(script), 0o755))
	if err == nil {
		err = os.Rename(filepath.Join(dir, "."+name), filepath.Join(dir, name))
	}
	return time.Now(), err
}

// ready waits until a driver is ready with another version than before.
func (s *stage) ready(ctx context.Context, name, before string) (change, error) {
	for {
		select {
		case c := <-s.told:
			if c.Name == name && c.State.State == decide.Ready && c.Hash != before {
				return c, nil
			}
		case <-time.After(time.Minute):
			return change{}, fmt.Errorf("driver %s is not ready after a minute", name)
		case <-ctx.Done():
			return change{}, ctx.Err()
		}
	}
}

// findable measures the time from the rename until the driver is usable.
func (s *stage) findable(ctx context.Context, figures map[string]any, drivers int) error {
	var times []time.Duration
	for n := range drivers {
		name := "d" + strconv.Itoa(n)
		at, err := s.install(name, s.script("first"))
		if err != nil {
			return err
		}
		c, err := s.ready(ctx, name, "")
		if err != nil {
			return err
		}
		times = append(times, c.at.Sub(at))
	}
	slices.Sort(times)
	figures["flex_usable_ms_median"], figures["flex_usable_ms_p99"] = milliseconds(median(times)),
		milliseconds(times[len(times)*99/100])
	figures["flex_drivers"] = drivers
	return nil
}

// again measures the time until a new version is usable that is installed just after a call of the old one,
// which is the worst moment.
func (s *stage) again(ctx context.Context, figures map[string]any, _ int) error {
	const rounds = 5
	var worst time.Duration
	before := ""
	for n := range rounds {
		at, err := s.install("again", s.script(strconv.Itoa(n)))
		if err != nil {
			return err
		}
		c, err := s.ready(ctx, "again", before)
		if err != nil {
			return err
		}
		worst, before = max(worst, c.at.Sub(at)), c.Hash
	}
	figures["flex_update_at_once_ms_max"] = milliseconds(worst)
	return nil
}

// storm rewrites one driver 1,000 times in 2 s.
func (s *stage) storm(ctx context.Context, figures map[string]any, _ int) error {
	const rewrites, pause = 1000, 2 * time.Millisecond
	if err := os.Remove(filepath.Join(s.dir, "inits")); err != nil {
		return err
	}
	dir := filepath.Join(s.host.Dir, "stormy")
	at := func(name string) string { return filepath.Join(dir, name) }
	err := os.Mkdir(dir, 0o755)
	for n := range rewrites {
		err = errors.Join(err, os.WriteFile(at(fmt.Sprint(".", n)), []byte(s.script(strconv.Itoa(n))), 0o755))
	}
	if err != nil {
		return err
	}
	begun := time.Now()
	for n := range rewrites {
		time.Sleep(time.Until(begun.Add(time.Duration(n) * pause)))
		if err := os.Rename(at(fmt.Sprint(".", n)), at("stormy")); err != nil {
			return err
		}
	}
	last := time.Now()
	figures["flex_storm_s"] = last.Sub(begun).Seconds()
	var c change
	for before := ""; ; before = c.Hash {
		var err error
		if c, err = s.ready(ctx, "stormy", before); err != nil {
			return err
		}
		if c.at.After(last) {
			break
		}
	}
	data, err := os.ReadFile(filepath.Join(s.dir, "inits"))
	if err != nil {
		return err
	}
	figures["flex_storm_rewrites"], figures["flex_storm_inits"] = rewrites, strings.Count(string(data), "\n")
	figures["flex_storm_last_version_ms"] = milliseconds(c.at.Sub(last))
	return nil
}

// calls measures the cost of a call, compared with a bare start of the script.
func (s *stage) calls(ctx context.Context, figures map[string]any, _ int) error {
	const rounds = 500
	d, err := s.host.Get(decide.Name{Driver: "d0"})
	if err != nil {
		return err
	}
	var bare, ours []time.Duration
	for range rounds {
		begun := time.Now()
		if err := exec.CommandContext(ctx, d.Path, "init").Run(); err != nil {
			return err
		}
		bare = append(bare, time.Since(begun))
		begun = time.Now()
		if _, err := d.Init(ctx); err != nil {
			return err
		}
		ours = append(ours, time.Since(begun))
	}
	figures["flex_script_ms_median"], figures["flex_call_ms_median"] = milliseconds(median(bare)),
		milliseconds(median(ours))
	figures["flex_call_overhead_ms_median"] = milliseconds(median(ours) - median(bare))
	return nil
}

// mounts is a driver with slow storage.
const mounts = `#!/bin/sh
case $1 in
init) ;;
mount) sleep 0.1; mkdir -p "$2"; mount -t tmpfs bench "$2" || exit 1 ;;
unmount) umount "$2" || exit 1 ;;
*) echo '{"status":"Not supported"}'; exit 1 ;;
esac
echo '{"status":"Success","capabilities":{"attach":false}}'
`

// atOnce mounts volumes at the same time, first with the bare script, then with the host.
func (s *stage) atOnce(ctx context.Context, figures map[string]any, volumes int) error {
	if _, err := s.install("mounts", mounts); err != nil {
		return err
	}
	if _, err := s.ready(ctx, "mounts", ""); err != nil {
		return err
	}
	d, err := s.host.Get(decide.Name{Driver: "mounts"})
	if err != nil {
		return err
	}
	all := func(deed func(name, dir string) error) (time.Duration, error) {
		begun := time.Now()
		var each errgroup.Group
		for n := range volumes {
			name := strconv.Itoa(n)
			each.Go(func() error { return deed(name, filepath.Join(s.dir, "volumes", name)) })
		}
		err := each.Wait()
		return time.Since(begun), err
	}
	for _, by := range []struct {
		figure string
		mount  func(name, dir string) error
	}{
		{"flex_scripts_mount_all_s", func(_, dir string) error {
			return exec.CommandContext(ctx, d.Path, "mount", dir, "{}").Run()
		}},
		{"flex_host_mounts_all_s", func(name, dir string) error {
			_, err := d.Mount(ctx, dir, "", decide.Volume{Name: name})
			return err
		}},
	} {
		took, err := all(by.mount)
		_, gone := all(func(_, dir string) error { _, err := d.Unmount(ctx, dir); return err })
		if err := errors.Join(err, gone); err != nil {
			return err
		}
		figures[by.figure] = took.Seconds()
	}
	return nil
}

// examination examines the example driver without attach.
func examination(ctx context.Context, figures map[string]any, _ int) error {
	path, name, err := install.Locate("../examples/flex/scratch/scratch", install.Options{})
	if err != nil {
		return err
	}
	r, err := (&doctor.Doctor{Path: path, Name: name}).Run(ctx)
	if err == nil && r.Level != finding.Pass {
		err = fmt.Errorf("the example driver has flaws: %+v", r.Findings)
	}
	figures["flex_doctor_s"], figures["flex_doctor_calls"] = r.Seconds, r.Calls
	return err
}
