package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"volplane.dev/volplane/test/internal/plane"
)

// machine describes the machine of the measurement.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Date   string `json:"date"`
}

func describeMachine() machine {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return machine{
		CPU: field("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Memory: field("/proc/meminfo", "MemTotal"),
		Kernel: strings.TrimSpace(string(kernel)), Go: runtime.Version(), Date: time.Now().UTC().Format(time.DateOnly),
	}
}

// field returns the value of the first "name: value" line of a file in /proc.
func field(path, name string) string {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// usage is what a process takes: memory, the part of it that is not pages of files, and processor time since its start.
type usage struct {
	rssKiB, anonymousKiB int
	cpu                  time.Duration
}

// clockTick is the unit of the times in /proc/PID/stat, 1/100 s on every Linux
// that Go runs on.
const clockTick = 10 * time.Millisecond

func readUsage(pid int) (usage, error) {
	status := fmt.Sprintf("/proc/%d/status", pid)
	var memory [2]int
	for i, name := range []string{"VmRSS", "RssAnon"} {
		n, err := strconv.Atoi(strings.TrimSuffix(field(status, name), " kB"))
		if err != nil {
			return usage{}, fmt.Errorf("read %s: %w", status, err)
		}
		memory[i] = n
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, err
	}
	// The second field is the program's name in parentheses and may hold
	// spaces; the times are fields 14 and 15.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			return usage{}, fmt.Errorf("read times of process %d: %w", pid, err)
		}
		ticks += n
	}
	return usage{rssKiB: memory[0], anonymousKiB: memory[1], cpu: time.Duration(ticks) * clockTick}, nil
}

func measureBinary(figures map[string]any, rounds int) error {
	info, err := os.Stat(plane.Bin("volplane"))
	if err != nil {
		return err
	}
	figures["volplane_size_mb"] = float64(info.Size()) / 1e6
	var times []time.Duration
	for range 4 * rounds {
		begin := time.Now()
		if err := exec.Command(plane.Bin("volplane"), "version").Run(); err != nil {
			return fmt.Errorf("volplane version: %w", err)
		}
		times = append(times, time.Since(begin))
	}
	figures["volplane_version_ms"] = milliseconds(median(times))
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
