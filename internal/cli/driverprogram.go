package cli

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// programOf replaces the program of a command by its absolute path.
func programOf(words []string) error {
	path, err := exec.LookPath(words[0])
	switch {
	case errors.Is(err, exec.ErrNotFound) && !strings.Contains(words[0], "/"):
		return fmt.Errorf("no program %s is in PATH: install it, or write its path", words[0])
	case err != nil:
		return fmt.Errorf("find the program: %w", err)
	}
	words[0], err = filepath.Abs(path)
	return err
}
