// Package verify verifies a delivery: signature is the header Service-Signature, body the bytes
// as they came.
package verify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// Verify tells whether the body was signed with the secret, and not long ago.
func Verify(secret, signature string, body []byte, tolerance time.Duration) bool {
	var t string
	var given [][]byte // two while a secret is rotated
	for _, pair := range strings.Split(signature, ",") {
		name, value, _ := strings.Cut(pair, "=")
		if name == "t" {
			t = value
		} else if mac, err := hex.DecodeString(value); name == "v1" && err == nil {
			given = append(given, mac)
		}
	}
	seconds, err := strconv.ParseInt(t, 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > tolerance {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(t + "."))
	mac.Write(body)
	expected := mac.Sum(nil)
	for _, one := range given {
		if hmac.Equal(one, expected) {
			return true
		}
	}
	return false
}
