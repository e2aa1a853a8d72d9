package host

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/volume"
)

// Survey inspects a plugin directory once, as a Host does, and calls init of all drivers
// concurrently. It changes nothing and may be repeated. A directory that does not exist has no
// drivers.
func Survey(ctx context.Context, dir string) ([]State, error) {
	entries, err := os.ReadDir(dir)
	if ignoreNotExist(err) != nil {
		return nil, fmt.Errorf("read plugin directory: %w", err)
	}
	var all []State
	var wait sync.WaitGroup
	var mu sync.Mutex
	for _, e := range entries {
		wait.Go(func() {
			if s := survey(ctx, dir, e.Name()); s.State != decide.Removed {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, s)
			}
		})
	}
	wait.Wait()
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func survey(ctx context.Context, dir, entry string) State {
	facts := decide.DriverFacts{Name: strconv.Quote(entry)}
	c, refused, err := inspect(dir, entry)
	if err != nil {
		refused = volume.Say(volume.ReasonFlexDriverRefused, volume.User(),
			"the driver in directory "+facts.Name+" cannot be looked at: "+err.Error())
	}
	if name, err := decide.ParseDir(entry); err == nil {
		facts.Name = name.String()
	}
	facts.Refused, facts.Present, facts.Probed = refused, c != nil, c != nil
	var ready *driver.Driver
	if c != nil {
		if ready, err = driver.Probe(ctx, c.name, c.path, driver.Options{}); err != nil {
			ready, facts.Failure = nil, err.Error()
		}
	}
	return stateOf(facts, dir, entry, ready)
}

// Refused returns why a host would not execute the file at an entry of a plugin directory; the
// reason is empty if it would, or if there is no file.
func Refused(dir, entry string) (volume.Because, error) {
	_, why, err := inspect(dir, entry)
	return why, err
}
