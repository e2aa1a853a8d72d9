package sidecar_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/sidecar"
)

// TestPage: the page about upstream's flags has the whole table. UPDATE_GOLDEN=1 writes it.
func TestPage(t *testing.T) {
	const path, begin, end = "../../docs/sidecar-flags.md", "<!-- flags -->\n", "<!-- end of flags -->"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(page), begin)
	_, tail, found := strings.Cut(rest, end)
	if !found {
		t.Fatal("the page has no place for the table")
	}
	want := head + begin + table() + end + tail
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(page) != want {
		t.Error("the page is not the table any more: UPDATE_GOLDEN=1 go test ./internal/sidecar")
	}
}

// table returns the flags as the page has them.
func table() string {
	var out strings.Builder
	for _, name := range sidecar.Programs() {
		role, _ := sidecar.RoleOf(name)
		if role.String() != name {
			continue
		}
		fmt.Fprintf(&out, "\n### %s\n\n| Flag | Default | Here |\n|---|---|---|\n", name)
		for _, f := range role.Flags() {
			if f.Old {
				continue
			}
			here := strings.ReplaceAll(f.Usage, "`", "")
			fmt.Fprintf(&out, "| `--%s` | %s | %s |\n", f.Name, strings.TrimSpace(f.Default), here)
		}
	}
	return out.String() + "\n"
}
