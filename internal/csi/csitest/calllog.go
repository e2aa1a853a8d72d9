package csitest

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/csi"
)

// CheckCallLog returns an option with which a test fails when a logged call lacks what is known of it.
func CheckCallLog(t testing.TB) csi.Option {
	return csi.WithCallLog(csi.NewCallLog(slog.New(lines{t})))
}

// lines checks each line of a log.
type lines struct{ t testing.TB }

// Enabled implements slog.Handler.
func (lines) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler.
func (l lines) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler.
func (l lines) WithGroup(string) slog.Handler { return l }

// Handle implements slog.Handler.
func (l lines) Handle(_ context.Context, r slog.Record) error {
	has := map[string]string{}
	r.Attrs(func(a slog.Attr) bool {
		has[a.Key] = a.Value.String()
		return true
	})
	call, wanted := has["call"], []string{"call"}
	if call != "Probe" && call != "GetPluginInfo" {
		wanted = append(wanted, "driver") // those are made before its name is known
	}
	if r.Message == "a call to a driver has failed" {
		wanted = append(wanted, "attempt", "duration", "code", "err")
	}
	switch {
	case call == "CreateVolume", call == "ControllerExpandVolume", call == "ControllerModifyVolume":
		wanted = append(wanted, "volume", "claim")
	case call == "DeleteVolume", call == "ControllerGetVolumeHealth", call == "ControllerGetVolume":
		wanted = append(wanted, "volume")
	case strings.HasSuffix(call, "publishVolume"), strings.HasSuffix(call, "PublishVolume"),
		strings.HasSuffix(call, "stageVolume"), strings.HasSuffix(call, "StageVolume"):
		wanted = append(wanted, "node", "id")
	case strings.Contains(call, "Snapshot"), call == "GetCapacity":
		wanted = append(wanted, "object")
	}
	if lacks := slices.DeleteFunc(wanted, func(key string) bool { return has[key] != "" }); len(lacks) > 0 {
		l.t.Errorf("%s: %v lacks %q", r.Message, has, lacks)
	}
	return nil
}
