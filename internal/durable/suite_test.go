package durable_test

import (
	"testing"

	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/durable/durabletest"
)

type entry struct {
	Format int    `json:"format"`
	Name   string `json:"name"`
	Done   bool   `json:"done"`
	Boot   string `json:"boot"`
}

func TestRecords(t *testing.T) {
	durabletest.Records(t, durable.Kind[entry]{
		Format:    3,
		Most:      1 << 10,
		Path:      func(e *entry) (string, error) { return "of/" + e.Name, nil },
		Clone:     func(e *entry) *entry { c := *e; return &c },
		Uncertain: func(e *entry) *entry { c := *e; c.Done = false; return &c },
		Boot:      func(e *entry) *string { return &e.Boot },
	}, &entry{Format: 3, Name: "a/1", Done: true}, &entry{Format: 3, Name: "b"})
}
