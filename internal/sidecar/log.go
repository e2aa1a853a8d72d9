package sidecar

import (
	"fmt"
	"io"
	"log/slog"
)

// VerbosityUsage and LogFormatUsage describe the flags of logs, which mean the same in all programs.
const (
	VerbosityUsage = "log verbosity: from 0 (warnings and what a user must know) to 7 (every request to the API server)"
	LogFormatUsage = "`format` of the log: text or json"
)

const (
	// callLevel is the verbosity from which on the levels of a program's own log are distinguished: below, there is only
	// that of debugging.
	callLevel = 5
	// maxLibraries is the highest verbosity of libraries. From 8 on, client-go logs requests and responses, including
	// Secrets.
	maxLibraries = 7
)

// Levels returns the lowest levels of a program's own log and of that of libraries, which have klog's levels. Libraries
// warn of temporary problems, so without -v only their errors are logged.
func Levels(verbosity int) (own, libraries slog.Level) {
	switch {
	case verbosity <= 0:
		return slog.LevelInfo, slog.LevelError
	case verbosity < callLevel:
		return slog.LevelDebug, slog.Level(-verbosity)
	}
	return slog.Level(-verbosity), slog.Level(-min(verbosity, maxLibraries))
}

// CheckLogFormat refuses formats that --logging-format does not have.
func CheckLogFormat(format string) error {
	if format != "text" && format != "json" && format != "" {
		return fmt.Errorf("--logging-format %q is unknown: use text or json", format)
	}
	return nil
}

// LogTo returns a handler that writes the log in a format of --logging-format from a level on.
func LogTo(format string, to io.Writer, level slog.Level) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.NewJSONHandler(to, o)
	}
	return slog.NewTextHandler(to, o)
}
