// Command bench measures the built programs and prints the figures as JSON:
// medians, with the machine they were measured on. It asserts nothing; the
// bounds are in docs/benchmarks.md.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"volplane.dev/volplane/test/internal/plane"
)

// report is what is printed.
type report struct {
	Machine machine        `json:"machine"`
	Figures map[string]any `json:"figures"`
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == hostedDriver {
		fmt.Fprintln(os.Stderr, beHosted(os.Args[2]))
		os.Exit(1)
	}
	rounds := flag.Int("rounds", 5, "how often each figure is measured")
	storm := flag.Int("storm", 200, "how many claims and Pods are made at once")
	hang := flag.Duration("hang", time.Minute, "with -mount, how long one call of the driver hangs")
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	measure := func(figures map[string]any) error { return measurePlane(ctx, figures, *rounds, *storm) }
	instead := func(name, usage string, f bench) {
		flag.Func(name, usage+", and nothing else", func(text string) error {
			n, err := strconv.Atoi(text)
			measure = func(figures map[string]any) error { return f(ctx, figures, n) }
			return err
		})
	}
	others(instead)
	instead("peers", "make and delete so many volumes with volplane's controllers and with Kubernetes' own",
		func(ctx context.Context, figures map[string]any, n int) error {
			return measurePeers(ctx, figures, n, *rounds)
		})
	instead("snapshot", "take a snapshot of each of so many volumes, and delete them, with volplane's controllers "+
		"and with Kubernetes' own", func(ctx context.Context, figures map[string]any, n int) error {
		return measureSnapshots(ctx, figures, n, *rounds)
	})
	instead("mount", "mount so many volumes at once on one node, and some one after the other, with volplane's node "+
		"agent and with a kubelet", func(ctx context.Context, figures map[string]any, n int) error {
		return measureMounting(ctx, figures, n, *hang)
	})
	instead("why", "ask a plane with so many volumes about one of them",
		func(ctx context.Context, figures map[string]any, n int) error {
			return measureWhy(ctx, figures, n, *rounds)
		})
	instead("page", "look at the page of a plane with so many volumes",
		func(ctx context.Context, figures map[string]any, n int) error {
			return measurePage(ctx, figures, n, *rounds)
		})
	flag.Parse()
	if err := run(measure); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// bench measures something n times.
type bench func(ctx context.Context, figures map[string]any, n int) error

// others declares the flags of benchmarks that need only a number.
func others(instead func(name, usage string, f bench)) {
	instead("bind", "bind so many claims to volumes that are there with volplane's binder and with Kubernetes' own",
		measureBinding)
	instead("bound", "have so many claims bound one after the other by volplane's controllers and by Kubernetes' own",
		measureBound)
	instead("attach", "attach so many volumes to nodes, and detach them, with volplane's controllers and with "+
		"Kubernetes' own", measureAttaching)
	instead("snapped", "hold so many volumes with a snapshot of each while nothing happens, with volplane's controllers "+
		"and with Kubernetes' own of snapshots", measureSnapped)
	instead("hold", "hold so many attachments while nothing happens, with volplane's controllers and Kubernetes' own",
		measureHolding)
	instead("mount8", "mount one volume, and unmount it, so many times by mount(8)'s helpers", measureMount8)
	instead("docker", "run a container so many times with a volume, and as often with a local one of docker's",
		measureDocker)
	instead("many", "mount so many claims at once, and as many images by losetup, mkfs and mount", measureMany)
	instead("flex", "find so many FlexVolume drivers, and one that is rewritten all the time, call one, examine one",
		measureFlex)
	instead("drivers", "run so many CSI drivers on a host", measureDrivers)
	instead("hosts", "mount so many claims on the control plane's host and as many on one that has joined",
		measureHosts)
	instead("joined", "have a host join a control plane with so many claims of others, and mount some of its own",
		measureJoined)
	instead("planes", "mount so many claims with three control planes over one etcd, and end the leader as often",
		measurePlanes)
	instead("beside", "ask so many times the programs beside a driver on a node whether it lives, and upstream's if "+
		"$UPSTREAM is their directory", measureBeside)
	instead("life", "attach so many volumes in a cluster of Kubernetes' own programs, restart what stands beside the "+
		"driver, and delete them, with volplane and with upstream's four sidecars",
		measureLives)
}

func run(measure func(figures map[string]any) error) error {
	out := report{Machine: describeMachine(), Figures: map[string]any{}}
	if err := measure(out.Figures); err != nil {
		return err
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

// measurePlane measures a whole plane with its bundled driver.
func measurePlane(ctx context.Context, figures map[string]any, rounds, storm int) error {
	if err := measureBinary(figures, rounds); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "volplane-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := measureStart(ctx, dir, figures, rounds); err != nil {
		return err
	}
	return measureVolumes(ctx, filepath.Join(dir, "volumes"), figures, 4*rounds, storm)
}

func measureStart(ctx context.Context, dir string, figures map[string]any, rounds int) error {
	var fresh, again []time.Duration
	for i := range rounds {
		d := filepath.Join(dir, fmt.Sprint("start", i))
		for _, times := range []*[]time.Duration{&fresh, &again} {
			p, err := plane.Start(ctx, d)
			if err != nil {
				return err
			}
			*times = append(*times, p.Took)
			if times == &again && i == rounds-1 {
				if err := measureIdle(p, figures); err != nil {
					return err
				}
			}
			p.Stop()
		}
	}
	figures["up_fresh_s"] = median(fresh).Seconds()
	figures["up_restart_s"] = median(again).Seconds()
	return nil
}

// measureIdle lets the start's work settle, then watches an interval without requests.
func measureIdle(p *plane.Plane, figures map[string]any) error {
	const interval = 20 * time.Second
	time.Sleep(10 * time.Second)
	before, err := readUsage(p.PID())
	if err != nil {
		return err
	}
	time.Sleep(interval)
	after, err := readUsage(p.PID())
	if err != nil {
		return err
	}
	figures["idle_rss_mib"] = float64(after.rssKiB) / 1024
	figures["idle_cpu_percent_of_a_core"] = 100 * (after.cpu - before.cpu).Seconds() / interval.Seconds()
	return nil
}

func median[T cmp.Ordered](d []T) (middle T) {
	if len(d) == 0 {
		return middle
	}
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}
